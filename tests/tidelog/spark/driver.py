"""A driver for tests to kill: it copies stream `in` to `before` and `after`, and pauses in batch 1 (faulty.py).

python -m tests.tidelog.spark.driver URL DIRECTORY key|topic
"""

from __future__ import annotations

import sys

from tests.tidelog.spark.sparkkit import new_session


def main(url: str, directory: str, kind: str) -> None:
    from tests.tidelog.spark.faulty import PausingSource

    spark = new_session()
    spark.dataSource.register(PausingSource)
    queries = []
    for key in ("before", "after"):
        reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
        writer = reader.option("minPartitions", 3).load().writeStream.format("tidelog_pausing").option("url", url)
        if kind == "topic":
            writer = writer.option("partitions", 4).option("partitionBy", "n")
        writer = writer.option(kind, key).option("checkpointLocation", f"{directory}/{key}")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
