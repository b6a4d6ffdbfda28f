"""Functions that tests/test_device.py runs in another process, where Triton's kernels are interpreted."""

import timeit

import numpy as np
from triton_worker import few_programs, interpret

PROMPT = [1, 5, 9]
LIMITS = {
    "name": "a GPU that nobody has", "memory_bytes": 2**30, "read_gbps": 20.0, "write_gbps": 20.0, "copy_gbps": 20.0,
    "host_to_device_gbps": 5.0, "launch_us": 1.0, "f32_gflops": 100.0,
}  # fmt: skip


def start():
    """The first call in the process."""
    interpret()
    few_programs.start()


def session(folder, notebook):
    """A session with the interpreter as its device "cuda", and invented limits."""
    import kit
    from kit.lab.measuring import machine, state
    from kit.lab.measuring.gpu import Limits

    invented = machine.Machine("m", "cpu", 2, 2**34, 2**34, 20.0, 20.0, 20.0, 100.0, 5.0)
    machine.of_run, state.cores_used_by_others = lambda out: invented, lambda: 0.0
    lab = kit.Session(notebook, profile="smoke", out=str(folder))
    lab.device, lab.gpu = "cuda", Limits(**LIMITS)
    return lab


def recorded(lab):
    """Its records, as plain dicts."""
    from kit.lab.claims import records

    return [vars(record) for record in records.read([lab.out / f"{lab.notebook}.jsonl"])]


def first_token(path, folder):
    """(table, records): equality is asserted within."""
    from kit.lab.findings import model_on_device

    lab = session(folder, "01_first_token")
    return model_on_device.first_tokens(lab, path, PROMPT, 1, 1.0), recorded(lab)


def caches(path, folder):
    """(table, records), with the differences from the CPU and the counts beside a replay's as gates."""
    import kit
    from kit.lab.findings import caches_on_device

    lab = session(folder, "03_cache_variants")
    with kit.open(path) as file:
        return caches_on_device.run(lab, file, 0.4, 2, ("LRU", "MRU", "Pinned")), recorded(lab)


def decode(path, folder):
    """(difference from the CPU, error without room for the blocks, (bytes, what is missing) of each point, table, records)."""
    import kit
    from kit.lab.findings import model_on_device as decode

    lab = session(folder, "04_attention")
    with kit.open(path) as file:
        model = decode.DeviceTransformer(decode.DeviceWeights(file), max_context=len(PROMPT))
        off = decode.relative_rms(model.step(PROMPT, model.new_cache()), decode.on_cpu(file, PROMPT))
        room = decode.free_bytes
        decode.free_bytes = lambda: 100_000
        try:
            decode.check_room(file)
        except kit.KitError as error:
            refused = str(error)
        decode.free_bytes = lambda: 2 * decode.kv_room(decode.read_config(file), 100, "float32")
        points = decode.speeds(file, 1, contexts=(1, 1000), kinds=("float32", "bfloat16"))
        for name in ("granite-3.3-8b", "tinyllama-1.1b"):
            decode.judge(lab, file, points, name)
        decode.roofline(points, lab.gpu)
        decode.free_bytes = room
        return (off, refused, points[["bytes", "missing"]].to_numpy().tolist(), decode.table(points, lab.gpu), recorded(lab))


def tiles(folder):
    """(seconds of one thread, table of batches): equality is asserted within."""
    import kit
    from kit.lab.findings import tiles_on_device

    tiles_on_device.time_on_device = lambda work, samples: timeit.repeat(work, number=1, repeat=samples)
    tiles_on_device.TILE_VALUES = 96 * 96  # smaller tiles: the interpreter takes a step for every 128 values
    values = np.clip(np.random.default_rng(0).normal(0, 20, (96, 96)), -127, 127).astype(np.int8)
    small = kit.codec.encode(np.ascontiguousarray(values[:9, :40]), "reported")
    thread = tiles_on_device.one_thread(small, 1)
    return thread, tiles_on_device.batches(session(folder, "05_tile_decode"), "tile-295-5", values, 1, (1,))


def compressed(path, prompt):
    """Logits of a prompt and of a further token from tiles on the device."""
    from kit.codec.container import CompressedFile
    from kit.lab.on_device.compressed import CompressedTransformer, TileWeights

    model = CompressedTransformer(TileWeights(CompressedFile(path)), max_context=len(prompt) + 1)
    cache = model.new_cache()
    return [model.step(tokens, cache).numpy() for tokens in (prompt, [2])]


def compressed_refusal(path):
    """The text of the error of a compressed file that no device decodes, or whose tiles are damaged."""
    import kit

    try:
        compressed(path, PROMPT)
    except kit.KitError as error:
        return str(error)


def compressed_finding(path):
    """(tokens, seconds of each, bytes held, passes over the bus)."""
    from kit.codec.container import CompressedFile
    from kit.lab.findings import tiles_on_device
    from kit.lab.measuring.gpu import Limits

    file = CompressedFile(path)
    tiles_on_device.time_on_device = lambda work, samples: timeit.repeat(work, number=1, repeat=samples)
    return *tiles_on_device.generate_from_tiles(file, PROMPT, 2), tiles_on_device.streamed(file, Limits(**LIMITS), 1)


def frontier(path, folder):
    """A row a share of the blocks."""
    import kit
    from kit.lab.findings import caches_on_device

    with kit.open(path) as file:
        return caches_on_device.frontier(session(folder, "07_memory_frontier"), file, 1, (0.0, 0.5, 1.0))
