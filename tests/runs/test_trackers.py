"""TensorBoard, MLflow (its real server, on loopback) and Weights & Biases (offline) get what the run has."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mixview
from mixview.options import LOGGERS
from mixview.runs.metric_logger import MetricLogger
from mixview.runs.run_directory import RunDirectory, read_metrics
from mixview.runs.trackers import IDS, TRACKERS, check_loggers, plain_name, read_ids, write_ids
from mixview.train.config import MonitorConfig
from tests.train.running import tiny


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server with a database and artifacts of its own."""
    folder, uri = tmp_path_factory.mktemp("mlflow"), f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2]]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/runs.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONWARNINGS": "ignore"}
    quiet["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.3)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing leaves this machine, and a server that is gone costs a second."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONFIG_DIR": str(tmp_path / "wandb-config"),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb-cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def settings(out: Path, loggers: str, **options: Any) -> dict[str, Any]:
    monitor = {"loggers": loggers, "project": "tests", **options.pop("monitor", {})}
    return tiny(out, monitor, augment_device="device", **options)


@pytest.mark.slow  # the server takes a while to start
def test_mlflow_has_settings_curves_pictures_and_the_encoder(server: str, tmp_path: Path) -> None:
    """And a resumed run goes on in the same run of MLflow."""
    from mlflow import MlflowClient

    out, monitor = tmp_path / "run", {"tracking_uri": server}
    mixview.pretrain(**settings(out, "tensorboard,mlflow", monitor=monitor, epochs=1))
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "simclr"
    assert run.data.params["batch_size"] == "16"
    logged = {record["step"]: record["loss"] for record in read_metrics(out) if "loss" in record}
    history = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "loss")}
    assert history == pytest.approx(logged)
    assert len(history) == 4
    artifacts = {each.path: each.file_size for each in client.list_artifacts(run.info.run_id)}
    assert artifacts == {name: (out / name).stat().st_size for name in ("views.png", "encoder.safetensors")}
    assert (Path(client.download_artifacts(run.info.run_id, "encoder.safetensors")).read_bytes()) == (
        out / "encoder.safetensors"
    ).read_bytes()
    assert list((out / "tensorboard").glob("events*"))

    mixview.resume(out, epochs=2, trust_remote_code=True)
    (run,) = client.search_runs([experiment.experiment_id])
    assert sorted({each.step for each in client.get_metric_history(run.info.run_id, "loss")}) == list(range(1, 9))
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "1"  # MLflow's parameters cannot change


def test_wandb_offline(tmp_path: Path) -> None:
    out = tmp_path / "run"
    mixview.pretrain(**settings(out, "wandb", epochs=1))
    (offline,) = (out / "wandb").glob("offline-run-*")
    number = json.loads((out / IDS).read_text())["wandb"]
    assert offline.name.endswith(number)
    content = b"".join(path.read_bytes() for path in offline.rglob("*") if path.is_file())
    assert b"loss" in content
    assert list(offline.rglob("views*.png"))
    mixview.resume(out, epochs=2, trust_remote_code=True)
    assert {path.name.rpartition("-")[2] for path in (out / "wandb").glob("offline-run-*")} == {number}


def test_a_server_that_is_not_there_costs_a_warning(tmp_path: Path) -> None:
    out, monitor = tmp_path / "run", {"tracking_uri": f"http://127.0.0.1:{free_port()}"}
    with pytest.warns(UserWarning, match="mlflow is left out from step 0 on, and the run continues") as caught:
        mixview.pretrain(**settings(out, "mlflow", monitor=monitor, epochs=1))
    assert len(caught) == 1
    assert RunDirectory.open(out).status["state"] == "finished"


def test_a_tracker_that_fails_is_left_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunDirectory.create(tmp_path / "run", {"epochs": 1}, {"kind": "scenes", "count": 1, "fingerprint": "a"})
    logger = MetricLogger(folder, MonitorConfig(), 0)

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(TRACKERS["tensorboard"], "log", fail)
    with folder, pytest.warns(UserWarning, match="tensorboard is left out from step 3 on, .*: No space left on device"):
        logger.log(3, {"loss": 1.0})
    with folder, logger:
        logger.log(4, {"loss": 2.0})
    assert [record["step"] for record in read_metrics(folder.path)] == [3, 4]


@pytest.mark.parametrize(
    ("loggers", "options", "message"),
    [
        (
            "mlflow",
            {},
            "needs the address of its server: pass tracking_uri, such as",
        ),
        ("mlflow", {"tracking_uri": "file:/etc"}, "the address of an MLflow server, such as .*, not 'file:/etc'"),
        ("tensorboard,mlfow", {}, "--monitor.loggers takes tensorboard, mlflow, wandb.*'mlfow': did you mean mlflow"),
    ],
)
def test_loggers_that_make_no_sense(loggers: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        mixview.pretrain(**settings(tmp_path / "run", loggers, monitor=options))
    assert not (tmp_path / "run").exists()


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the wandb package: pip install 'mixview\[trackers\]'"):
        check_loggers(MonitorConfig(loggers="wandb"))
    assert check_loggers(MonitorConfig(loggers="none")) == ()


def test_names() -> None:
    assert tuple(TRACKERS) == LOGGERS
    assert plain_name("top-1 (k = 20)") == "top-1 _k _ 20_"


def test_ids_in_a_folder_are_not_trusted(tmp_path: Path) -> None:
    """What somebody wrote into the run directory is no part of an address."""
    folder = RunDirectory.create(tmp_path / "run", {"epochs": 1}, {"kind": "scenes", "count": 1, "fingerprint": "a"})
    with folder:
        write_ids(folder, mlflow="0123abc", mlflow_uri="http://localhost:5000")
        write_ids(folder, wandb="../../etc")
    assert read_ids(folder) == {"mlflow": "0123abc", "mlflow_uri": "http://localhost:5000"}
    (folder.path / IDS).write_text('{"mlflow": 3}')
    assert read_ids(folder) == {}
