#!/usr/bin/env python3
"""Fills the corpora with the exchanges recorded from a Tarantool, one file a packet."""
import json
import pathlib

root = pathlib.Path(__file__).resolve().parent
exchanges = json.loads((root.parent / "spec/fixtures/iproto-newest.json").read_text())["exchanges"]
for target in ("msgpack", "packet", "request"):
    folder = root / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for i, exchange in enumerate(exchanges):
        for j, text in enumerate([exchange["request"], *exchange["responses"]]):
            data = bytes.fromhex(text)
            # A value fuzzer starts behind the length and the header of a response.
            if target == "msgpack" and data[:1] == b"\xce":
                data = data[32:] or data[5:]
            # The space of the engine's target has another id than the recorded one.
            if target == "request":
                data = data.replace(b"\x10\xcd\x02\xbc", b"\x10\xcd\x02\x00")
            if 0 < len(data) < 20000:
                (folder / f"{i:03}-{j}").write_bytes(data)
