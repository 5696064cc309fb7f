"""A worker that does as its candidate says: stands in where a device would have to break."""

import json
import os
import sys
import time
from pathlib import Path

parent = int(json.loads(sys.stdin.readline())["KERNELPRO_PARENT"])
for line in sys.stdin:
    job = json.loads(line)
    wish = (job["candidate"] or job["candidates"][0])["source"]
    if wish.startswith("exit unless ") and not Path(wish.removeprefix("exit unless ")).exists():
        Path(wish.removeprefix("exit unless ")).touch()
        sys.exit(3)
    if wish == "break the device":
        sys.exit(75)
    if wish.startswith("prepare"):
        line = {"type": "progress", "job": job["id"], "stage": "loading the reference", "preparing": True}
        print(json.dumps(line), flush=True)
    if wish == "prepare and exit":
        sys.exit(3)
    if wish.endswith("hang"):
        while os.getppid() == parent:
            time.sleep(0.1)
        sys.exit()
    while wish.startswith("wait for ") and not Path(wish.removeprefix("wait for ")).exists():
        time.sleep(0.01)
    answer = {"data": {"kind": "build", "reason": wish}}
    if wish.startswith("need ") and not Path(wish.removeprefix("need ")).exists():
        answer = {"error": "it is not there"}
    print(json.dumps({"type": "result", "job": job["id"], **answer}), flush=True)
