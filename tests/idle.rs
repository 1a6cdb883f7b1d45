//! An engine with nothing to do sleeps, and its guard takes next to nothing. Alone in its binary: it
//! looks at all threads of the process.

use millstream::engine::{Engine, Model, Options, Request};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an idle engine is watched, and the share of one CPU that it may take.
const WATCHED: Duration = Duration::from_secs(3);
const SHARE_MAX: f64 = 0.005;

/// CPU time of all threads of the process.
fn cpu_time() -> Duration {
    let of = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    let times = tasks.map(|task| of(task.expect("a task")).expect("the kernel counts CPU time"));
    Duration::from_nanos(times.sum())
}

/// The guard looks as often as it does in a server.
fn takes_next_to_nothing() {
    let (before, since) = (cpu_time(), Instant::now());
    std::thread::sleep(WATCHED);
    let share = (cpu_time() - before).as_secs_f64() / since.elapsed().as_secs_f64();
    println!("{:.3} % of one CPU", share * 100.0);
    assert!(share < SHARE_MAX, "{share}");
}

#[test]
fn idle_engine_sleeps() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/glm-dsa");
    let model = Model::open(&directory).expect("the model opens");
    let options = Options { threads: Some(2), ..Options::default() };
    let engine = Engine::start(model, &options).expect("it starts");
    let answer = engine.generate(&Request::greedy(vec![5], 4), &mut |_| ControlFlow::Continue(()));
    assert_eq!(answer.expect("it runs").answer_ids.len(), 4);
    // Every thread of the pipeline parks in the end; a thread that spins for ever never does.
    let ours = |name: &str| ["seat-", "crew-", "scheduler"].iter().any(|p| name.starts_with(p));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut awake = vec![];
        for task in std::fs::read_dir("/proc/self/task").expect("tasks") {
            let stat = std::fs::read_to_string(task.expect("a task").path().join("stat"));
            let Ok(stat) = stat else { continue };
            let (name, rest) = stat.rsplit_once(')').expect("name and state");
            let name = name.split_once('(').expect("a name").1;
            if ours(name) && !rest.trim_start().starts_with('S') {
                awake.push(name.to_owned());
            }
        }
        if awake.is_empty() {
            return takes_next_to_nothing();
        }
        assert!(Instant::now() < deadline, "still awake: {awake:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
