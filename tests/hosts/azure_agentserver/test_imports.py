"""The adapter needs its host's package, and nothing else of turnstore does."""

import subprocess
import sys


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_turnstore_alone_imports_no_host() -> None:
    ran = run(
        "import sys, turnstore, turnstore.adapters; print([n for n in sys.modules if n.startswith('azure')])"
    )
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


def test_without_the_host_s_package_the_adapter_names_the_extra() -> None:
    ran = run("import sys; sys.modules['azure'] = None; import turnstore.adapters.azure_agentserver")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: azure-ai-agentserver-responses is not installed: "
        "pip install 'turnstore[azure-agentserver]'"
    )
