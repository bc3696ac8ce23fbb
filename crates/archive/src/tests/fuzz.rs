//! Archives with random changes of bytes (see `muster_fuzz`).

use muster_fuzz::{Corpus, fuzz};

use super::*;

/// Small limits, so that unpacking ends soon.
const LIMITS: Limits =
    Limits { bytes: 1 << 20, entries: 200, ratio: 1000, ratio_floor: 1 << 20, header_bytes: 1 << 20 };

/// Unpacks random inputs. Nothing outside of the root may change.
fn fuzz_format(name: &str, format: Format, write: WriteItems) {
    let long = format!("{}/long", "n".repeat(120));
    let items = [
        directory("a"),
        file("a/b", "content"),
        link("c", "a"),
        link("out", "../canary"),
        file("out/keys", "attack"),
        file("../canary/keys", "attack"),
        file(&long, &"x".repeat(600)),
        link("d", &long),
        item(EntryType::Link, "e", "a/b"),
        item(EntryType::Fifo, "f", ""),
    ];
    let samples: Vec<Vec<u8>> = [&items[..3], &items[6..8], &items[3..5], &items[5..6], &items[..]].map(write).into();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let words = [
        "PK\x01\x02",
        "PK\x03\x04",
        "PK\x05\x06",
        "PK\x06\x06",
        "../",
        "/",
        "ustar\0",
        "././@LongLink",
        "30 path=../canary/keys attack\n",
        "20 size=99999999999\n",
        "\u{0}\u{0}\u{0}\u{0}",
        "77777777777\0",
    ];
    fuzz(name, Corpus { samples: &samples, words: &words }, |archive| {
        let sandbox = Sandbox::new();
        let before = sandbox.outside();
        let result = sandbox.unpack(format, archive, &LIMITS);
        assert_eq!(sandbox.outside(), before, "nothing outside of the root may change: {result:?}");
        let _ = Format::from_magic(archive);
    });
}

#[test]
fn fuzz_zip() {
    fuzz_format("zip", Format::Zip, zip);
}

#[test]
fn fuzz_tar_headers() {
    fuzz_format("tar headers", Format::Tar, tar);
}

#[test]
fn fuzz_tar_gzip() {
    fuzz_format("tar with gzip", Format::TarGzip, tar_gzip);
}

#[test]
fn fuzz_tar_zstd() {
    fuzz_format("tar with zstd", Format::TarZstd, tar_zstd);
}
