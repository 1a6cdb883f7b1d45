//! An engine with nothing to do sleeps. Alone in its binary: it looks at all threads of the process.

use millstream::engine::{Engine, Model, Options, Request};
use std::ops::ControlFlow;
use std::path::Path;

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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
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
            return;
        }
        assert!(std::time::Instant::now() < deadline, "still awake: {awake:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
