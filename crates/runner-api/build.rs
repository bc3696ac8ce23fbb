//! Compiles the .proto file without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("job_router.proto")?;
    tonic_prost_build::configure()
        // Avoids copies of large payloads.
        .bytes(".gitlab.agent.job_router.rpc")
        .compile_fds(compiler.file_descriptor_set())?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
