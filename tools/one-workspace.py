#!/usr/bin/env python3
"""Makes a workspace in which packages of other workspaces are members of the main one, so that cargo compiles our crates
once for all: what it compiles it names by the place in the workspace, by features and by profile.

    one-workspace.py OUT PACKAGE…       PACKAGE is a folder of the repository, such as `python`

OUT gets a link to our crates, copies of the packages, and a lock file of what both lock files have. The profiles are those of the
main workspace; the packages that only another workspace needs stay out of the main lock file.
"""
import pathlib, re, shutil, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def locked(path):
    """The head of a lock file, and its packages by name, version and source."""
    head, *packages = path.read_text().split("[[package]]\n")
    key = lambda text: tuple(re.findall(r'^(?:name|version|source) = "(.+)"$', text, re.M))
    return head, {key(text): text.rstrip("\n") + "\n" for text in packages}


def main():
    out, packages = pathlib.Path(sys.argv[1]), sys.argv[2:]
    out.mkdir(parents=True)
    (out / "crates").symlink_to(ROOT / "crates")
    main = (ROOT / "Cargo.toml").read_text()
    members = 'members = ["crates/*"]'
    assert members in main
    main = main.replace(members, f"members = {['crates/*', *packages]}")
    (out / "Cargo.toml").write_text(main)
    head, lock = locked(ROOT / "Cargo.lock")
    for package in packages:
        folder = out / package
        folder.mkdir(parents=True)
        # What stands beside it, if not in the root.
        for above in list(pathlib.Path(package).parents)[:-1]:
            for file in (ROOT / above).iterdir():
                if not (out / above / file.name).exists():
                    (out / above / file.name).symlink_to(file)
        for file in (ROOT / package).iterdir():
            if file.name == "Cargo.toml":
                # Without its own workspace and profiles.
                tables = re.split(r"^(?=\[)", file.read_text(), flags=re.M)
                kept = [t for t in tables if not re.match(r"\[(workspace|profile)[\].]", t)]
                (folder / file.name).write_text("".join(kept))
            elif file.name == "Cargo.lock":
                lock = locked(file)[1] | lock
            elif file.is_dir():
                # Packers of wheels follow no links.
                shutil.copytree(file, folder / file.name, ignore=shutil.ignore_patterns("target", "__pycache__"))
            else:
                shutil.copy2(file, folder)
    (out / "Cargo.lock").write_text(head + "\n".join("[[package]]\n" + lock[key] for key in sorted(lock)))


main()
