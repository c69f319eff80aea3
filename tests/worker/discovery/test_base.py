"""The sources that a configuration asks for, and those that it does not ask for any more."""

import asyncio
import pathlib

from smg.obs.metrics import Meter
from smg.obs.shm import CONTROL_ROW
from smg.worker import EngineSpec
from smg.worker.discovery import Discovery
from tests.worker.fake import Rig, until


def test_a_source_that_is_switched_off_has_named_nothing(tmp_path: pathlib.Path) -> None:
    """The control process after a reload takes over what the one before it found."""
    rig = Rig(tmp_path, urls=())

    async def main() -> None:
        fleet = rig.fleet()
        fleet.say([EngineSpec(url="grpc://f:1", source="file"), EngineSpec(url="grpc://k:1", source="kubernetes")])
        fleet.say([EngineSpec(url="grpc://x:1", source="api")])
        discovery = Discovery(rig.config, fleet=fleet, meter=Meter(rig.shm, row=CONTROL_ROW))
        discovery.start()
        await until(lambda: [record.url for record in rig.registry.records()] == ["grpc://x:1"])
        await discovery.close()
        await fleet.close()

    asyncio.run(main())
