//! Fuzzes `model.safetensors.index.json`: no panic, and every accepted file name is plain.
//!
//! Run with `bash tools/fuzz.sh 60 index`; the seeds are small indexes, and new finds go to the
//! corpus.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream::checkpoint::index::parse_index;
use std::path::{Component, Path};

fuzz_target!(|text: &[u8]| {
    let Ok(index) = parse_index(text) else { return };
    for shard in &index.shards {
        let mut components = Path::new(shard).components();
        assert!(matches!(components.next(), Some(Component::Normal(_))), "{shard}");
        assert_eq!(components.next(), None, "{shard}");
    }
    assert!(index.tensors.values().all(|&shard| shard < index.shards.len()));
});
