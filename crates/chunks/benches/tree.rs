//! Saves a directory as chunks and restores it. Used by `benches/cache`.
//!
//! ```text
//! cargo bench -p muster-chunks --bench tree -- FILES STORE TARGET ID
//! ```
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark prints its results, and panics if it fails"
)]

use std::path::{Path, PathBuf};
use std::time::Instant;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use muster_archive::Limits;
use muster_chunks::{Known, Restore, Save, Store};

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(files) = arguments.next().map(PathBuf::from) else { return };
    let [store, target, id] = [(); 3].map(|()| arguments.next().expect("FILES STORE TARGET ID"));
    let store = Store::new(Path::new(&store), "unprotected").unwrap();

    let start = Instant::now();
    let walk = walkdir::WalkDir::new(&files).min_depth(1).sort_by_file_name().into_iter();
    let paths = walk.map(|found| found.unwrap().path().strip_prefix(&files).unwrap().to_owned());
    let paths: Vec<PathBuf> = paths.collect();
    let (mut known, mut current) = (Known::default(), None);
    if let Some(reference) = store.reference("key").unwrap() {
        let index = store.index(&reference, &Limits::default()).unwrap();
        known.add_index(&index, |pack| store.has(pack));
        current = Some(index);
    }
    let save = Save {
        root: &files,
        files: &paths,
        key: "key",
        store: &store,
        known: &known,
        current: current.as_ref(),
        id: &id,
        pack_bytes: 16 << 20,
        max_packs: 4096,
        level: 3,
        stop: &|| false,
    };
    let saved = save.run().unwrap();
    if let Some(reference) = &saved.reference {
        store.set_reference(reference).unwrap();
    }
    let index_bytes = saved.reference.as_ref().map_or(0, |reference| reference.index.size);
    let stored = index_bytes + saved.packs.iter().map(|pack| pack.size).sum::<u64>();
    println!("save seconds {:.3} stored {stored} bytes {}", start.elapsed().as_secs_f64(), saved.bytes);

    let start = Instant::now();
    std::fs::create_dir_all(&target).unwrap();
    let into = Dir::open_ambient_dir(&target, ambient_authority()).unwrap();
    let index = store.index(&store.reference("key").unwrap().unwrap(), &Limits::default()).unwrap();
    let restore = Restore { store: &store, index: &index, spool: None, limits: Limits::default(), stop: &|| false };
    let restored = restore.run(&into).unwrap();
    println!("restore seconds {:.3} loaded {} bytes {}", start.elapsed().as_secs_f64(), restored.loaded, index.bytes());
}
