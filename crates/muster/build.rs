//! Compiles `wrapper.proto` without protoc, and links a smaller executable if the linker supports that.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Linker arguments that merge identical functions and pack relocations.
const SIZE_LINK_ARGS: [&str; 2] = ["-Wl,--icf=safe", "-Wl,-z,pack-relative-relocs"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["wrapper.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") && supports_size_link_args() == Some(true) {
        for argument in SIZE_LINK_ARGS {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
    }
    Ok(())
}

/// Returns whether a program linked with [`SIZE_LINK_ARGS`] runs, or `None` if this cannot be checked.
///
/// Some linkers reject the arguments, and a glibc before 2.36 cannot start the program.
fn supports_size_link_args() -> Option<bool> {
    let target = env::var("TARGET").ok().filter(|target| env::var("HOST").is_ok_and(|host| host == *target))?;
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    let (source, program) = (out.join("trial.rs"), out.join("trial"));
    fs::write(&source, "fn main() { println!(\"{:?}\", std::env::args()); }").ok()?;
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    rustc.arg(&source).arg("-o").arg(&program).args(["--target", &target]);
    if let Some(flags) = env::var("CARGO_ENCODED_RUSTFLAGS").ok().filter(|flags| !flags.is_empty()) {
        rustc.args(flags.split('\u{1f}'));
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    for argument in SIZE_LINK_ARGS {
        rustc.arg("-C").arg(format!("link-arg={argument}"));
    }
    let run_silently = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
    Some(run_silently(&mut rustc)?.success() && run_silently(&mut Command::new(&program))?.success())
}
