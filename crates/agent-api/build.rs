//! Compiles the .proto files without protoc.

use std::env;
use std::fs;
use std::path::PathBuf;

#[expect(clippy::disallowed_methods, reason = "a build script writes its output")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(["step_runner.proto", "agent.proto", "debugger.proto"])?;
    tonic_prost_build::configure()
        // Avoids another copy of each chunk of a log.
        .bytes(".proto.FollowLogsResponse")
        .codec_path("crate::codec::SmallBufferCodec")
        .compile_fds(compiler.file_descriptor_set())?;
    let descriptors = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(descriptors, compiler.encode_file_descriptor_set())?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
