"""A driver for tests to kill: copies stream `in` to stream `out`, and pauses where TIDELOG_TEST_PAUSE says (faulty.py).

python -m tests.tidelog.spark.driver URL CHECKPOINT
"""

from __future__ import annotations

import sys

from tests.tidelog.spark.sparkkit import new_session


def main(url: str, checkpoint: str) -> None:
    from tests.tidelog.spark.faulty import PausingSource

    spark = new_session()
    spark.dataSource.register(PausingSource)
    reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).option("minPartitions", 3)
    writer = reader.load().writeStream.format("tidelog_pausing").option("url", url).option("key", "out")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
