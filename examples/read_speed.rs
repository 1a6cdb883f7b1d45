//! How fast experts come from a drive: `cargo run --release --example read_speed -- PACK [GIB]`.
//!
//! Reads random experts of a pack through every reader into the slots of a real arena, and beside
//! them a plain loop of direct reads into the same memory, in turns. The page cache is emptied
//! before buffered readers where that is permitted.

use millstream::checkpoint::pack::{PackChecks, PackFiles};
use millstream::engine::{DirectChoice, FileToRead, IoChoice, ReadOptions, open_reader};
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::{
    ExpertShape, LoadClass, LoadOrder, Piece, ReadJob, ReadNeeds, Reader,
};
use millstream_stages::simulation::Random;
use millstream_stages::weights::WeightSource;
use millstream_topology::arena::{ArenaBuilder, Binding, LayerArena};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: u32 = 16;
const ROUNDS: usize = 3;

struct Bench {
    pack: PackFiles,
    layer: LayerId,
    shape: ExpertShape,
    experts: usize,
    arena: Arc<LayerArena>,
    files: Vec<FileToRead>,
    bytes_wanted: usize,
}

impl Bench {
    fn open(directory: &Path, bytes_wanted: usize) -> Bench {
        let pack = PackFiles::open(directory, PackChecks::default()).expect("a pack");
        let spec = &pack.blueprint.spec;
        let layer = spec.layers.iter().position(|layer| layer.moe().is_some()).expect("experts");
        let experts = spec.layers[layer].moe().expect("experts").experts;
        let layer = LayerId(layer as u32);
        let shape = pack.expert_shape(layer);
        let mut builder = ArenaBuilder::new(1);
        builder.slots(SLOTS, &[shape.expert_bytes()]);
        let arena = Arc::new(builder.build(&Binding::off()).expect("memory"));
        arena.populate().expect("memory");
        let handles = pack.paths().map(Path::to_path_buf).zip(pack.handles());
        let files = handles.map(|(path, handle)| FileToRead { path, handle }).collect();
        Bench { pack, layer, shape, experts, arena, files, bytes_wanted }
    }

    fn extent(&self, random: &mut Random) -> (ExpertId, Piece) {
        let expert = ExpertId(random.below(self.experts) as u32);
        let extent = self.pack.expert_extents(self.layer, expert)[0];
        let (file, offset, wanted) = (extent.file, extent.offset, extent.bytes);
        (expert, Piece { file, offset, lead: 0, wanted, node: 0, at: 0 })
    }

    /// GB/s of a reader.
    fn reader(&self, options: &ReadOptions, seed: u64) -> f64 {
        let mut reader = open_reader(&self.files, options).expect("a reader").reader;
        let geometry = reader.geometry();
        let needs = ReadNeeds::new(&self.pack.blueprint.spec, &self.pack, 1, geometry);
        reader.reserve(SLOTS as usize);
        let mut random = Random::new(seed);
        let mut submit = |reader: &mut dyn Reader, mut job: Box<ReadJob>, slot: u32| {
            let (expert, piece) = self.extent(&mut random);
            let lease = self.arena.begin_fill(slot).expect("idle");
            job.take(
                self.layer,
                LoadOrder { expert, lease, class: LoadClass::Decode, wanted_ns: 0 },
            );
            job.read_into_slot([piece].into_iter(), geometry);
            reader.submit(job);
        };
        let started = Instant::now();
        for slot in 0..SLOTS {
            let job = ReadJob::new(needs.room).expect("no buffer");
            submit(&mut *reader, Box::new(job), slot);
        }
        let mut bytes = 0;
        while reader.pending() > 0 {
            let Some(mut job) = reader.poll() else {
                reader.wait(Duration::from_micros(200));
                continue;
            };
            assert!(job.progress.failure().is_none(), "{:?}", job.progress.failure());
            bytes += job.progress.bytes_read() as usize;
            let lease = job.end();
            let slot = lease.slot();
            lease.finish();
            if bytes + SLOTS as usize * self.shape.expert_bytes() <= self.bytes_wanted {
                submit(&mut *reader, job, slot);
            }
        }
        bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    }

    /// GB/s of a loop of direct reads of 4 MiB, into the same slots.
    fn plain_loop(&self, seed: u64) -> f64 {
        let direct = |file: &FileToRead| millstream::checkpoint::pack::open_direct(&file.path);
        let files: Vec<_> =
            self.files.iter().map(direct).collect::<Result<_, _>>().expect("direct");
        let mut random = Random::new(seed);
        let (started, mut bytes, mut slot) = (Instant::now(), 0, 0);
        while bytes < self.bytes_wanted {
            let (_, piece) = self.extent(&mut random);
            let mut lease = self.arena.begin_fill(slot).expect("idle");
            let mut offset = piece.offset;
            for chunk in lease.part_mut(0).chunks_mut(4 << 20) {
                files[piece.file.index()].read_exact_at(chunk, offset).expect("it reads");
                offset += chunk.len() as u64;
            }
            bytes += piece.wanted;
            lease.finish();
            slot = (slot + 1) % SLOTS;
        }
        bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let pack = arguments.next().expect("usage: read_speed PACK [GIB]");
    let gib: f64 = arguments.next().map_or(2.0, |text| text.parse().expect("a number"));
    let bench = Bench::open(Path::new(&pack), (gib * (1u64 << 30) as f64) as usize);
    println!(
        "experts of {} bytes, {gib} GiB a run, {ROUNDS} rounds in turns",
        bench.shape.expert_bytes()
    );
    let options = |io, direct| ReadOptions { io, direct, ..ReadOptions::default() };
    let readers = [
        ("uring direct", options(IoChoice::Uring, DirectChoice::On)),
        ("pread direct", options(IoChoice::Pread, DirectChoice::On)),
        ("uring buffered", options(IoChoice::Uring, DirectChoice::Off)),
        ("pread buffered", options(IoChoice::Pread, DirectChoice::Off)),
    ];
    for round in 0..ROUNDS as u64 {
        println!("plain loop      {:.2} GB/s", bench.plain_loop(round));
        for (name, options) in &readers {
            if options.direct == DirectChoice::Off {
                // Without the permission the figure is the page cache's.
                let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
            }
            println!("{name:<15} {:.2} GB/s", bench.reader(options, round));
        }
    }
}
