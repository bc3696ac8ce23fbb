//! The examples and templates: short, and with the protocol of this room.

use std::path::PathBuf;

fn text(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A provider is small: under 150 lines of Rust, and under 100 of Python or shell.
#[test]
fn a_provider_is_a_page_or_two() {
    for (path, lines_max) in [
        ("crates/fleeting/templates/rust/src/main.rs", 150),
        ("examples/plugins/rust/src/main.rs", 150),
        ("crates/fleeting/templates/python/group.py", 100),
        ("examples/plugins/python/fleeting-plugin-sshd.py", 100),
        ("crates/fleeting/templates/shell/group", 100),
        ("examples/plugins/shell/sshd-group", 100),
    ] {
        let lines = text(path).lines().count();
        assert!(lines < lines_max, "{path} has {lines} lines");
    }
}

/// The Python example has the file beside it, so that it can be copied as it is.
#[test]
fn the_protocol_of_the_python_example_is_this_one() {
    let (copy, own) =
        (text("examples/plugins/python/instance_group.proto"), text("crates/fleeting/proto/instance_group.proto"));
    assert!(copy == own, "copy crates/fleeting/proto/instance_group.proto to examples/plugins/python");
}
