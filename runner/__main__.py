"""Where the command starts. `--version` alone is answered before anything heavy is imported."""

import sys


def main() -> None:
    """Run the command line, and exit with its status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        from runner.version import __version__

        print(f"rousseau-runner {__version__}")
        return
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # From the first moment on: Ctrl-C among the imports is no reason for a traceback.
        signal.signal(signal.SIGINT, lambda number, frame: sys.exit(128 + number))
    from runner.cli import main as run_cli

    sys.exit(run_cli(arguments))


if __name__ == "__main__":
    main()
