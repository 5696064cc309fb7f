"""Packs the worker into one file: a zip archive with the lab's modules, which Python runs directly.

The lab starts processes by module name and confines them to folders, which needs real files. So the archive
unpacks itself when it first starts, to a cache folder named after the hash of its content.
"""

from __future__ import annotations

import io
import zipapp
import zipfile
from pathlib import Path

from kernelpro.records import BadInput

_PACKAGE = Path(__file__).resolve().parents[2]
_PARTS = ("__init__.py", "runtime.py", "records", "lab", "pools")
_MAIN = """
import hashlib, os, shutil, sys, tempfile, zipfile

if sys.version_info < (3, 11):
    sys.exit("kernelpro: this needs Python 3.11 or later, and torch")
archive = sys.argv[0]
with open(archive, "rb") as file:
    name = hashlib.sha256(file.read()).hexdigest()[:24]
base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
cache = os.path.join(base, "kernelpro", "packed")
try:
    os.makedirs(cache, exist_ok=True)
    temporary = None
    home = os.path.join(cache, name)
except OSError:
    temporary = cache = tempfile.mkdtemp(prefix="kernelpro-")
    home = os.path.join(cache, name)
if not os.path.isdir(home):
    partial = tempfile.mkdtemp(dir=cache)
    with zipfile.ZipFile(archive) as content:
        content.extractall(partial)
    try:
        os.rename(partial, home)
    except OSError:  # another process was faster
        shutil.rmtree(partial)
sys.path.insert(0, home)
try:
    from kernelpro.pools.spool.main import main

    main()
finally:
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
"""


def pack_worker(out: Path) -> None:
    """Write the packed worker to a file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN.lstrip())
        for part in _PARTS:
            place = _PACKAGE / part
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if path.is_file() and path.suffix != ".pyc":
                    archive.write(path, f"kernelpro/{path.relative_to(_PACKAGE)}")
    buffer.seek(0)
    try:
        zipapp.create_archive(buffer, out, "/usr/bin/env python3")
    except OSError as error:
        raise BadInput(f"--pack {out}: cannot be written ({error.strerror})") from None
