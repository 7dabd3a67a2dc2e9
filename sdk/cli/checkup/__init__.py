"""What `toolbake doctor` looks at: the machine and the packages, then tools, tasks and verifier."""
