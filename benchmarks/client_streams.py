"""Does our client keep many streams busy without slowing them down?

    python benchmarks/client_streams.py [--streams 128] [--tokens 64] [--step-ms 50]

A server in another process streams to all clients at a fixed rate and notes when it sent what. The
ratio is our TPOT over the server's own; the aim is at most 1.05 on one core.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from eval.client import ask
from eval.spec import Prompt, Sampling

CHUNK = {"choices": [{"index": 0, "delta": {"content": " word"}, "token_ids": [7]}]}
USAGE = {"prompt_tokens": 7, "total_tokens": 7}


def serve(pipe: Connection, num_tokens: int, step_s: float) -> None:
    """Streams to everyone who asks; sends its own mean TPOT when it is told to stop."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    spans: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if b"content-length" in x
        )
        await reader.readexactly(size)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        chunk = f"data: {json.dumps(CHUNK)}\n\n".encode()
        first = 0.0
        began = time.perf_counter()
        for index in range(num_tokens):
            await asyncio.sleep(max(began + (index + 1) * step_s - time.perf_counter(), 0))
            if index == num_tokens - 1:
                last = {"choices": [{**CHUNK["choices"][0], "finish_reason": "length"}]}
                chunk = f"data: {json.dumps(last)}\n\n".encode()
            now = time.perf_counter()
            first = first or now
            writer.write(chunk)
            await writer.drain()
        spans.append((now - first) / (num_tokens - 1))
        usage = {"choices": [], "usage": {**USAGE, "completion_tokens": num_tokens}}
        writer.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)
        pipe.send(sum(spans) / len(spans))
        server.close()

    asyncio.run(run())


def main() -> None:
    """Prints one line: both TPOTs, their ratio, and the client's share of a core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=50.0)
    flags = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(
        target=serve, args=(theirs, flags.tokens, flags.step_ms / 1e3), daemon=True
    )
    server.start()
    port = ours.recv()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    prompts = [Prompt(id=str(i), category="c", turns=("hello",)) for i in range(2 * flags.streams)]
    began, cpu = time.perf_counter(), time.process_time()
    batch = ask(
        f"http://127.0.0.1:{port}",
        "fake",
        prompts,
        Sampling(max_tokens=flags.tokens),
        concurrency=flags.streams,
    ).require_complete()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    ours.send("stop")
    sent_s = ours.recv()
    seen_s = sum(answer.tpot_s or 0.0 for answer in batch.answers) / len(batch.answers)
    print(
        f"{flags.streams} streams, a token every {flags.step_ms:g} ms: server TPOT "
        f"{sent_s * 1e3:.2f} ms, client TPOT {seen_s * 1e3:.2f} ms, ratio {seen_s / sent_s:.3f}, "
        f"client {cpu_s / wall_s:.0%} of one core, "
        f"{sum(a.num_tokens for a in batch.answers) / wall_s:.0f} tokens/s"
    )
    server.join(5)


if __name__ == "__main__":
    main()
