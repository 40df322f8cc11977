"""Loads the classes that most of Spark's JVMs load in tests: ``scripts/test`` has this JVM write them to an archive.

python -m tests.tidelog.spark.archive FOLDER
"""

from __future__ import annotations

import sys

from tests.tidelog.spark.sparkkit import ended, new_session


def main(folder: str) -> None:
    """Run two batches of a query with a state. ``folder``: an empty one, for its input and its checkpoint."""
    spark = new_session()
    for _ in range(2):
        spark.range(5).write.mode("append").json(f"{folder}/input")
        rows = spark.readStream.schema("id long").json(f"{folder}/input")
        counts = rows.groupBy("id").count().writeStream.format("noop").outputMode("update")
        ended(counts.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
