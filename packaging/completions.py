"""Writes the completions of bash, zsh and fish: `python completions.py SHELL` prints them; `make deb` installs them."""

import sys

from commandline import Flag, commands, flags_of

__all__ = ["bash", "fish", "zsh"]


def bash() -> str:
    """Gives /usr/share/bash-completion/completions/smg."""
    lists = "\n".join(f"        {name}) flags='{' '.join(flag.name for flag in flags_of(name))}' ;;" for name in commands())
    cases = "\n".join(f"        {pattern}) {reply}; return ;;" for pattern, reply in _bash_values())
    return f"""# bash completion for smg
_smg() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} flags
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ] && [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W '{" ".join(commands())}' -- "$current")
        return
    fi
    case ${{COMP_WORDS[1]}}:$before in
{cases}
    esac
    case ${{COMP_WORDS[1]}} in
{lists}
        -*) flags='{" ".join(flag.name for flag in flags_of("launch"))}' ;;
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}}
complete -o filenames -F _smg smg
"""


def _bash_values() -> list[tuple[str, str]]:
    cases: dict[tuple[str, str], str] = {}
    for command in commands():
        for flag in flags_of(command):
            if flag.values:
                cases[command, flag.name] = f"mapfile -t COMPREPLY < <(compgen -W '{' '.join(flag.values)}' -- \"$current\")"
            elif flag.takes == "folder":
                cases[command, flag.name] = 'mapfile -t COMPREPLY < <(compgen -d -- "$current")'
            elif flag.takes == "text":
                cases[command, flag.name] = ":"
    by_reply: dict[str, list[str]] = {}
    for (command, name), reply in cases.items():
        by_reply.setdefault(reply, []).append(f"{command}:{name}")
    return [("|".join(patterns), reply) for reply, patterns in by_reply.items()]


def zsh() -> str:
    """Gives /usr/share/zsh/vendor-completions/_smg."""
    named = "\n".join(f"        {_quoted(name + ':' + what)}" for name, what in commands().items())
    cases = "\n".join(f"    {name})\n        _arguments \\\n{_zsh_arguments(name)}\n        ;;" for name in commands())
    return f"""#compdef smg
local -a smg_commands
smg_commands=(
{named}
)
if (( CURRENT == 2 )); then
    _describe command smg_commands
    return
fi
local command=$words[2]
shift words
(( CURRENT-- ))
case $command in
{cases}
esac
"""


def _zsh_arguments(command: str) -> str:
    return " \\\n".join("            " + _quoted(_zsh_argument(flag)) for flag in flags_of(command)) + " \\\n            '*:file:_files'"


def _zsh_argument(flag: Flag) -> str:
    meaning = flag.meaning.replace("[", "(").replace("]", ")").replace(":", " -")
    action = f"({' '.join(flag.values)})" if flag.values else {"file": "_files", "folder": "_files -/", "text": " "}.get(flag.takes, "")
    return f"*{flag.name}[{meaning}]" + (f":value:{action}" if action else "")


def fish() -> str:
    """Gives /usr/share/fish/vendor_completions.d/smg.fish."""
    lines = ["# fish completion for smg"]
    lines += [f"complete -c smg -n __fish_use_subcommand -f -a {name} -d {_quoted(what)}" for name, what in commands().items()]
    for command in commands():
        lines += [_fish_line(command, flag) for flag in flags_of(command)]
    return "\n".join(lines) + "\n"


def _fish_line(command: str, flag: Flag) -> str:
    line = f"complete -c smg -n '__fish_seen_subcommand_from {command}' -l {flag.name[2:]}"
    if flag.values:
        line += f" -x -a {_quoted(' '.join(flag.values))}"
    elif flag.takes:
        line += {"file": " -r", "folder": " -x -a '(__fish_complete_directories)'", "text": " -x"}[flag.takes]
    return line + (f" -d {_quoted(flag.meaning)}" if flag.meaning else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "’") + "'"


if __name__ == "__main__":
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[sys.argv[1]]())
