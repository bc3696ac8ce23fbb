//! Compiles the .proto file of `gitlab-runner wrapper` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["wrapper.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
