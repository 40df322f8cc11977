"""A driver for tests to kill: queries that copy stream ``in`` to topics on two groups. Each pauses in batch 1.

python -m tests.tidelog.spark.clusterdriver URL DIRECTORY STEP[,STEP ...]

The topic ``stepN`` is written by the query that pauses before the Nth step of the commit.
"""

from __future__ import annotations

import sys

from tests.tidelog.spark.sparkkit import new_session


def main(url: str, directory: str, steps: str) -> None:
    from tests.tidelog.spark.steppedsink import SteppedSource

    spark = new_session()
    spark.dataSource.register(SteppedSource)
    queries = []
    for step in steps.split(","):
        reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 50)
        writer = reader.option("minPartitions", 2).load().writeStream.format("tidelog_stepped").option("url", url)
        writer = writer.option("topic", f"step{step}").option("partitions", 4).option("partitionBy", "n")
        writer = writer.option("checkpointLocation", f"{directory}/step{step}")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
