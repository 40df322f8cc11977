"""A storm from the command line: python -m tests.storm --help."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.storm import clusters, run
from tests.storm.faults import WEIGHTS
from tests.storm.histories import KINDS
from tests.storm.run import Plan, StormError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description="Random faults in real servers.")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--coordinator", choices=("file", "etcd"), default="file")
    parser.add_argument("--faults", type=int, default=1_000_000, help="how many in all")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the whole run")
    parser.add_argument("--kinds", default=",".join(WEIGHTS), help="kinds of faults (default: all)")
    parser.add_argument("--rate", type=float, default=3.0, help="faults per second, at most")
    parser.add_argument("--round", type=float, default=30.0, help="seconds until everything is checked")
    parser.add_argument("--groups", help="a cluster: the members of each group, such as 2,2,1")
    parser.add_argument("--history", choices=KINDS, default="", help="a cluster with an object store, and tier-free")
    parser.add_argument("--dir", type=Path, help="where logs and data are kept")
    args = parser.parse_args()
    top = args.dir or Path(tempfile.mkdtemp(prefix="tidelog-storm-"))
    top.mkdir(parents=True, exist_ok=True)
    groups = tuple(int(each) for each in args.groups.split(",")) if args.groups else ()
    if args.history and not groups:
        parser.error("--history needs --groups")
    plan = Plan(
        args.seed, args.coordinator, args.faults, 60 * args.minutes, tuple(args.kinds.split(",")), args.round,
        args.rate, groups=groups, history=args.history,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that processes and file systems are ended
    print(plan, top, flush=True)
    try:
        print(clusters.run(plan, top) if groups else run.run(plan, top))
    except StormError as error:
        sys.exit(str(error))
    if args.dir is None:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
