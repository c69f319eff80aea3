"""The layer below the files: secrets that systemd hands to the service as files, see LoadCredential= in systemd.exec(5).

A credential with one of these names, or with `smg_` before it as when a folder is loaded, stands for the setting that takes its file.
Whatever a file, variable or flag says wins.
"""

from collections.abc import Mapping
from pathlib import Path

from smg.config.fields import fields
from smg.config.settings import Assignment, Settings

__all__ = ["CREDENTIALS", "read_credentials"]

# name of the credential -> the setting that its path is the value of
CREDENTIALS = {
    "api-keys": "server.api_key_file",
    "tls.crt": "tls.cert_path",
    "tls.key": "tls.key_path",
    "engine-ca.crt": "tls.ca_cert_path",
    "engine-client.crt": "tls.client_cert_path",
    "engine-client.key": "tls.client_key_path",
}
PREFIXES = ("", "smg_")


def read_credentials(environment: Mapping[str, str], settings: Settings) -> None:
    """Puts the paths of the credentials that are there into the settings."""
    folder = environment.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return
    by_path = {field.path: field for field in fields()}
    for name, setting in CREDENTIALS.items():
        path = next((path for prefix in PREFIXES if (path := Path(folder, prefix + name)).is_file()), None)
        if path is not None:
            settings.put(Assignment(field=by_path[setting], raw=str(path), origin=f"credential {path.name}", text=False))
