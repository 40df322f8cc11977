"""Benthos, the engine of Redpanda Connect, with the mappings of the flow in ``benchmarks.flows.through`` ("map").

The package mq-bridge-connect has it as a library. Its route gets no events: the last mapping deletes all of them. The
seconds that are printed are CPU time, with the mappings less that without them.
"""

import json
import sys
import time

import mq_bridge
import mq_bridge_connect

COUNT = int(sys.argv[2])
VALUE = json.dumps({"id": 7, "item": "tea", "price": 2.5, "city": "Catania", "paid": 1})
WHERE = "root = if !(this.price > 2 && this.paid == 1) { deleted() }"
FIELDS = """
root = this
root.total = (this.price * 1.22 * 100).round() / 100
root.item = this.item.uppercase()
root.dear = if this.price > 2 { "yes" } else { "no" }
"""


def seconds(name: str, *mappings: str) -> float:
    """CPU time until the events were created, mapped and deleted. All threads count."""
    source = {"count": COUNT, "interval": "", "batch_size": 500, "mapping": f"root = {VALUE}"}
    processors = [{"mapping": each} for each in (*mappings, "root = deleted()")]
    config = {"connector": "broker", "inputs": [{"generate": source, "processors": processors}]}
    route = {name: {"input": {"custom": {"name": "connect", "config": config}}, "output": {"null": None}}}
    used = time.process_time()
    mq_bridge.Route.from_str(json.dumps(route), name).run()
    return time.process_time() - used


mq_bridge_connect.register()
without = seconds("without")
print(json.dumps({"events": COUNT, "seconds": seconds("mapped", WHERE, FIELDS) - without}))
