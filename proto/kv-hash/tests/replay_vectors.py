"""Replays (or with --write makes) the golden vectors with the PyPI packages blake3 and xxhash.

An implementation of README.md that shares no code with the crate.
Usage: pip install blake3 xxhash && python replay_vectors.py [--write]
"""
import json, pathlib, struct, sys
from blake3 import blake3
import xxhash

PATH = pathlib.Path(__file__).parent.parent / "vectors" / "armature-xxh3-v1.json"
SCHEME = b"armature-xxh3-v1"

def part(data): return struct.pack("<I", len(data)) + data
def xxh3(seed, data): return xxhash.xxh3_64_intdigest(data, seed)

def root_of(case):
    parts = [SCHEME, bytes.fromhex(case["model_digest"]), bytes.fromhex(case["adapter_digest"]),
             case["tenant"].encode(), case["cache_salt"].encode()]
    return blake3(b"".join(map(part, parts))).digest()

def hashes_of(case):
    root = root_of(case)
    seed = struct.unpack("<Q", root[:8])[0]
    size, tokens, out = case["block_size"], case["tokens"], []
    for i in range(len(tokens) // size):
        data = struct.pack(f"<{size}I", *tokens[i * size:(i + 1) * size])
        extras = sorted((e["kind"], e["offset"], bytes.fromhex(e["digest"])) for e in case["extras"].get(str(i), []))
        data += b"".join(struct.pack("<BH", kind, offset) + digest for kind, offset, digest in extras)
        local = xxh3(seed, data)
        out.append(local if not out else xxh3(seed, struct.pack("<QQ", out[-1], local)))
    return root.hex(), f"{seed:016x}", [f"{h:016x}" for h in out]

def digest_of(blocks):
    return f"{sum(xxh3(0, struct.pack('<QB', int(h, 16), t)) for h, t in blocks) % 2**64:016x}"

def cases():
    model, adapter = "11" * 32, "22" * 32
    base = dict(model_digest=model, adapter_digest="", tenant="", cache_salt="", block_size=16, tokens=list(range(40)), extras={})
    image = dict(kind=1, offset=3, digest="ab" * 16)
    late = dict(kind=1, offset=300, digest="cd" * 16)
    yield dict(base, name="plain, two full blocks and a tail of 8")
    yield dict(base, name="no full block", tokens=[1, 2, 3])
    yield dict(base, name="with tenant", tenant="acme")
    yield dict(base, name="with salt", cache_salt="pepper")
    yield dict(base, name="tenant and salt are not interchangeable", tenant="pepper")
    yield dict(base, name="tenant, salt and adapter", tenant="acme", cache_salt="pepper", adapter_digest=adapter)
    yield dict(base, name="tenant and salt in UTF-8", tenant="Müller & Söhne", cache_salt="塩")
    yield dict(base, name="nothing but the scheme", model_digest="")
    yield dict(base, name="largest tokens, blocks of 1", block_size=1, tokens=[0, 2**32 - 1, 2**31])
    yield dict(base, name="long block", block_size=64, tokens=[(i * 2654435761) % 49152 for i in range(256)])
    yield dict(base, name="extra in the first block", extras={"0": [image]})
    yield dict(base, name="extras out of order", extras={"0": [late, image], "1": [dict(image, kind=0)]})

def main():
    sets = [[], [["0000000000000001", 1]], [["0000000000000001", 1], ["0000000000000001", 2]],
            [["ffffffffffffffff", 4], ["0123456789abcdef", 3], ["0000000000000000", 1]]]
    if "--write" in sys.argv:
        out = {"scheme": SCHEME.decode(), "sequences": [], "sets": [{"blocks": s, "digest": digest_of(s)} for s in sets]}
        for case in cases():
            case["root_key"], case["seed"], case["sequence_hashes"] = hashes_of(case)
            out["sequences"].append(case)
        PATH.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    vectors = json.loads(PATH.read_text())
    for case in vectors["sequences"]:
        assert hashes_of(case) == (case["root_key"], case["seed"], case["sequence_hashes"]), case["name"]
    for case in vectors["sets"]:
        assert digest_of(case["blocks"]) == case["digest"], case
    print(f"{len(vectors['sequences'])} sequences and {len(vectors['sets'])} sets agree")

main()
