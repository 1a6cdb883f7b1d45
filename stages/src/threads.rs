//! A pipeline on threads: one a seat, besides the crews.
//!
//! Starts the crew and the seats' threads, pins them as the plan says, and stops and joins them
//! when dropped. Waves go in with [`Pipeline::submit`] and come out with [`Pipeline::wait`]. When a
//! thread dies of a broken assertion, everything stops and the waiter is told.

use crate::caps::Caps;
use crate::gauge::Gauges;
use crate::ids::{ExpertId, LayerId, SeatId, Tag};
use crate::limits::Limits;
use crate::load::Reader;
use crate::patience::{Next, Patience};
use crate::pipeline::{Assembly, Blueprint, StartError, assemble, executor_bounds};
use crate::queue::{Crew, CrewPlan, NodeCrew, prepare_thread};
use crate::seat::Seat;
use crate::stage::{ActorId, Directory, Envelope, Message, StageKind};
use crate::wave::Wave;
use millstream_topology::AffinityMask;
use millstream_topology::arena::LayerArena;
use millstream_topology::cpuset::CpuId;
use millstream_topology::pin::pin_current_thread;
use millstream_topology::plan::{PlacementPlan, SeatHost};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread of the pipeline died; the process should end.
#[derive(Debug, thiserror::Error)]
#[error(
    "a thread of the pipeline stopped (its message is on stderr); this is a bug, please report it"
)]
pub struct Stopped;

/// A running pipeline.
pub struct Pipeline {
    directory: Directory,
    gauges: Arc<Gauges>,
    limits: Limits,
    arenas: Vec<Arc<LayerArena>>,
    /// Waves that are not in flight. Boxed, because the pipeline moves them by pointer.
    #[expect(clippy::vec_box, reason = "a wave's box goes through the rings")]
    idle: Vec<Box<Wave>>,
    in_flight: usize,
    spin: Duration,
    patience: Patience,
    control: Arc<Control>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share with their starter.
struct Control {
    stop: AtomicBool,
    died: AtomicBool,
    warnings: Mutex<Vec<String>>,
}

impl Control {
    /// Pins the calling thread; a refusal is a warning.
    fn pin(&self, cpu: Option<CpuId>) {
        if let Some(cpu) = cpu
            && let Err(error) = pin_current_thread(cpu)
        {
            self.warnings.lock().push(error.to_string());
        }
    }
}

impl Pipeline {
    /// Reads the resident weights and starts all threads.
    ///
    /// # Errors
    /// When a tensor can't be read, or memory or threads can't be had.
    pub fn start(blueprint: &Blueprint, reader: Box<dyn Reader>) -> Result<Pipeline, StartError> {
        let plan = &blueprint.plan;
        let control = Arc::new(Control {
            stop: AtomicBool::new(false),
            died: AtomicBool::new(false),
            warnings: Mutex::new(plan.warnings.clone()),
        });
        let crew = start_crew(blueprint, &control)?;
        let assembly = assemble(blueprint, Box::new(crew), reader)?;
        let Assembly { seats, directory, gauges, waves, limits, arenas } = assembly;
        let spin = Duration::from_micros(u64::from(plan.spin_us));
        let mut pipeline = Pipeline {
            directory,
            gauges,
            limits,
            arenas: arenas.clone(),
            idle: waves,
            in_flight: 0,
            spin,
            patience: Patience::new(spin, has_spare_cpu(plan)),
            control,
            threads: vec![],
        };
        for seat in seats {
            pipeline.spawn(seat, cpu_of(plan, &pipeline.directory, seat_id(&pipeline)))?;
        }
        pipeline.populate(arenas)?;
        Ok(pipeline)
    }

    fn spawn(&mut self, mut seat: Seat, cpu: Option<CpuId>) -> Result<(), StartError> {
        let (control, directory) = (self.control.clone(), self.directory.clone());
        let (id, spin) = (seat.id, self.spin);
        let body = move || {
            let _guard = DeathGuard { control: control.clone(), directory };
            prepare_thread();
            control.pin(cpu);
            seat.run(&control.stop, spin);
        };
        let name = format!("seat-{}", id.0);
        let thread = std::thread::Builder::new().name(name).spawn(body);
        self.threads.push(thread.map_err(|source| StartError::Thread { seat: id, source })?);
        Ok(())
    }

    /// Makes the arenas' memory present beside whatever runs, so that no read has to wait for pages.
    fn populate(&mut self, arenas: Vec<Arc<LayerArena>>) -> Result<(), StartError> {
        let (control, gauges) = (self.control.clone(), self.gauges.clone());
        let body = move || {
            for arena in &arenas {
                // Once slots give memory back, pages come when they are written; also where this is
                // refused (an old kernel, no memory left).
                let over = control.stop.load(Ordering::Acquire) || gauges.caps_taken() > 0;
                if over || arena.populate().is_err() {
                    break;
                }
            }
            for arena in &arenas {
                if let Err(error) = arena.settle() {
                    control.warnings.lock().push(error.to_string());
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("populate".into()).spawn(body);
        let seat = SeatId(u32::MAX);
        self.threads.push(thread.map_err(|source| StartError::Thread { seat, source })?);
        Ok(())
    }

    /// A wave to fill, empty and in a new life; none when all are in flight.
    pub fn take_wave(&mut self) -> Option<Box<Wave>> {
        let mut wave = self.idle.pop()?;
        wave.recycle();
        Some(wave)
    }

    /// Hands a filled wave in.
    ///
    /// # Panics
    /// When the wave has no rows.
    pub fn submit(&mut self, wave: Box<Wave>) {
        assert!(!wave.rows.is_empty(), "a wave without rows");
        self.in_flight += 1;
        self.directory.submit(wave);
    }

    /// Loads experts that will probably be used, as hints: nobody waits for them, and demands come
    /// first. At most half of all slots' worth is taken, so that every queue has room for it; call it
    /// once, before the first wave.
    pub fn warm(&self, experts: &[(LayerId, ExpertId)]) {
        let slots: usize = self.limits.slots.iter().sum();
        let seat = self.directory.seat_of[StageKind::Prefetch as usize];
        for &(layer, expert) in experts.iter().take(slots / 2) {
            let to = ActorId { layer, stage: StageKind::Prefetch };
            let envelope = Envelope::new(to, Message::Hint(expert));
            self.directory.inboxes[seat.index()].deliver(Tag::default(), envelope);
        }
    }

    /// Waves in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Waits for a finished wave; give it back with [`Pipeline::give_back`].
    ///
    /// # Errors
    /// When a thread of the pipeline died.
    ///
    /// # Panics
    /// When no wave is in flight.
    pub fn wait(&mut self) -> Result<Box<Wave>, Stopped> {
        assert!(self.in_flight > 0, "nothing to wait for");
        let finished = self.directory.finished.clone();
        let died = || self.control.died.load(Ordering::Acquire);
        let since = Instant::now();
        loop {
            if let Some(tagged) = finished.ring.pop() {
                self.in_flight -= 1;
                self.patience.came(since.elapsed());
                return Ok(tagged.value);
            }
            if died() {
                return Err(Stopped);
            }
            match self.patience.next(since.elapsed()) {
                Next::Spin => std::hint::spin_loop(),
                Next::Sleep(time) => std::thread::sleep(time),
                Next::Park => {
                    finished.parking.park_if(|| finished.ring.is_empty() && !died());
                }
            }
        }
    }

    /// Takes a finished wave back.
    pub fn give_back(&mut self, wave: Box<Wave>) {
        self.idle.push(wave);
    }

    /// Counters and histograms.
    pub fn gauges(&self) -> &Arc<Gauges> {
        &self.gauges
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// All arenas: first the one outside of layers, then layer by layer.
    pub fn arenas(&self) -> &[Arc<LayerArena>] {
        &self.arenas
    }

    /// The way to say how many slots may be used; for one owner.
    pub fn caps(&self) -> Caps {
        Caps::new(self.directory.clone(), self.gauges.clone(), &self.limits.slots)
    }

    /// What went other than planned at start, for the user.
    pub fn warnings(&self) -> Vec<String> {
        self.control.warnings.lock().clone()
    }
}

/// Some CPU that we may use has no compute thread on it.
fn has_spare_cpu(plan: &PlacementPlan) -> bool {
    let allowed = AffinityMask::capture().cpus.as_ref().map_or(0, |cpus| cpus.len());
    plan.is_pinned() && allowed > plan.threads
}

fn seat_id(pipeline: &Pipeline) -> SeatId {
    SeatId(pipeline.threads.len() as u32)
}

/// The CPU that a seat is pinned to.
fn cpu_of(plan: &PlacementPlan, directory: &Directory, seat: SeatId) -> Option<CpuId> {
    let own = |host: SeatHost| match host {
        SeatHost::OwnThread(cpu) => cpu,
        SeatHost::Leader => None,
    };
    if seat == SeatId(0) {
        plan.leader.cpu
    } else if directory.seat_of[StageKind::Load as usize] == seat {
        own(plan.io)
    } else {
        own(plan.residency)
    }
}

fn start_crew(blueprint: &Blueprint, control: &Arc<Control>) -> Result<Crew, StartError> {
    let plan = &blueprint.plan;
    let (scratch_len, jobs_max) = executor_bounds(blueprint);
    let nodes = plan.nodes.iter().enumerate();
    let crew_plan = CrewPlan {
        nodes: nodes.map(|(index, node)| NodeCrew::of(index, node.workers.len())).collect(),
        leader_node: plan.leader.node,
        spin_us: plan.spin_us,
        scratch_len,
        jobs_max,
    };
    let cpus: Vec<Vec<Option<CpuId>>> = plan.nodes.iter().map(|n| n.workers.clone()).collect();
    let control = control.clone();
    let pin = Arc::new(move |node: usize, worker: usize| control.pin(cpus[node][worker]));
    Ok(Crew::start(&crew_plan, &(pin as crate::queue::StartHook))?)
}

/// Wakes everybody when a seat's thread ends, so that nobody waits for a dead one.
struct DeathGuard {
    control: Arc<Control>,
    directory: Directory,
}

impl Drop for DeathGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.control.died.store(true, Ordering::Release);
            self.control.stop.store(true, Ordering::Release);
            self.directory.inboxes.iter().for_each(|inbox| {
                inbox.parking.wake();
            });
            self.directory.finished.parking.wake();
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Release);
        for inbox in self.directory.inboxes.iter() {
            inbox.parking.wake();
        }
        for thread in self.threads.drain(..) {
            // A dead thread has said why on stderr.
            let _ = thread.join();
        }
    }
}
