"""A worker that does as its candidate says: stands in where a device would have to break."""

import json
import sys
import time
from pathlib import Path

for line in sys.stdin:
    job = json.loads(line)
    wish = job["candidate"]["source"]
    if wish == "break the device":
        sys.exit(75)
    if wish == "hang":
        time.sleep(600)
    while wish.startswith("wait for ") and not Path(wish.removeprefix("wait for ")).exists():
        time.sleep(0.01)
    print(json.dumps({"type": "result", "job": job["id"], "data": {"did": wish}}), flush=True)
