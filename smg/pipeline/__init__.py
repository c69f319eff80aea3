"""From job to events: the stages between the API surfaces and the engines. `run.py` lists them in order."""

__all__ = ["ChatFrame", "ModelCard", "ModelDirectory", "Pipeline", "Prompt", "Relay", "RelayRequest", "ServedModel"]

from smg.pipeline.models import ModelCard, ModelDirectory, ServedModel
from smg.pipeline.native import ChatFrame
from smg.pipeline.prompt import Prompt
from smg.pipeline.relay import Relay, RelayRequest
from smg.pipeline.run import Pipeline
