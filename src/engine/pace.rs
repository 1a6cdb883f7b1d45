//! How many prompt rows go beside sequences that answer, so that their streams keep their pace.
//!
//! Owned by the scheduler, which says how long waves took and asks how many prompt rows may be handed
//! in. Where nobody answers, prompts have all rows. Where somebody does, the prompt rows between two
//! waves that answers ride in may cost so much time that the answers take [`Pace`]'s `most` times as
//! long as without them. What rows cost isn't known: each brings experts of its own, and long contexts
//! cost more. So the number of rows follows the measured time, quickly down and slowly up, and now and
//! then a wave goes without prompt rows, to measure what is compared with. Rows alone change no bytes.

/// Waves with prompt rows between two that go without: they cost prompts one wave in so many.
const MIXED_MAX: u32 = 48;
/// Rows that are tried first.
const ROWS_FIRST: f64 = 4.0;
/// The share of a new measurement of a wave without prompt rows.
const NEW_SHARE: f64 = 0.25;
/// The most that one measurement changes the number of rows by.
const STEP: std::ops::RangeInclusive<f64> = 0.5..=1.2;

/// What is known of the waves' time.
#[derive(Debug)]
pub struct Pace {
    /// Answers take at most so many times as long; none lets prompts take what they want.
    most: Option<f64>,
    /// By rows that answer: the time of a wave without prompt rows, in ns; 0 where none was seen.
    plain_ns: Vec<f64>,
    /// Prompt rows that suit.
    rows: f64,
    rows_max: f64,
    /// Prompt rows that were handed in since answers were last.
    handed: usize,
    /// Waves with prompt rows since one went without.
    mixed: u32,
    /// A wave of answers goes without prompt rows, beside it too, to be measured.
    measures: bool,
    /// Prompt rows of waves without answers that ended since answers were last, and their time in ns.
    aside: (usize, u64),
}

impl Pace {
    /// For so many sequences and rows of a wave.
    pub fn new(most: Option<f64>, sequences_max: usize, rows_max: usize) -> Pace {
        Pace {
            most,
            plain_ns: vec![0.0; sequences_max + 1],
            rows: ROWS_FIRST.min(rows_max as f64),
            rows_max: rows_max as f64,
            handed: 0,
            mixed: 0,
            measures: false,
            aside: (0, 0),
        }
    }

    /// Prompt rows that may be handed in now, while `answering` sequences answer; `rides` of them in
    /// the same wave.
    pub fn prompt_rows(&mut self, answering: usize, rides: usize) -> usize {
        if self.most.is_none() || answering == 0 {
            (self.aside, self.measures) = ((0, 0), false);
            return usize::MAX;
        }
        if rides > 0 {
            self.handed = 0;
            self.measures = self.plain_ns[rides] == 0.0 || self.mixed >= MIXED_MAX;
        }
        if self.measures {
            return 0;
        }
        (self.rows as usize).max(1).saturating_sub(self.handed)
    }

    /// So many prompt rows were handed in.
    pub fn handed_in(&mut self, rides: usize, prompt_rows: usize) {
        self.handed += prompt_rows;
        if rides > 0 {
            self.mixed = if prompt_rows > 0 { self.mixed + 1 } else { 0 };
        }
    }

    /// A wave with so many rows that answer and so many prompt rows took so long, from the end of the wave
    /// before it.
    pub fn took(&mut self, answering: usize, prompt_rows: usize, ns: u64) {
        let Some(most) = self.most else { return };
        let (prompt_rows, ns) = (prompt_rows + self.aside.0, ns + self.aside.1);
        if answering == 0 {
            self.aside = (prompt_rows, ns);
            return;
        }
        (self.aside, self.measures) = ((0, 0), false);
        let plain_ns = &mut self.plain_ns[answering];
        if prompt_rows == 0 {
            let share = if *plain_ns == 0.0 { 1.0 } else { NEW_SHARE };
            *plain_ns += share * (ns as f64 - *plain_ns);
            return;
        }
        if *plain_ns == 0.0 {
            return;
        }
        let allowed_ns = (most - 1.0) * *plain_ns;
        let extra_ns = (ns as f64 - *plain_ns).max(allowed_ns / 8.0);
        let step = (allowed_ns / extra_ns).clamp(*STEP.start(), *STEP.end());
        // A prompt's short end says nothing about more rows than it had.
        if step < 1.0 || prompt_rows >= self.rows as usize {
            self.rows = (self.rows * step).clamp(1.0, self.rows_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a wave takes so long.
    type Machine = fn(usize, usize) -> f64;

    /// Waves of `answering` sequences beside an endless prompt: (times as long as plain, rows) each.
    fn drive(
        pace: &mut Pace,
        machine: Machine,
        answering: usize,
        waves: usize,
    ) -> Vec<(f64, usize)> {
        let wave = |_| {
            let rows = pace.prompt_rows(answering, answering).min(128);
            pace.handed_in(answering, rows);
            let ns = machine(answering, rows);
            pace.took(answering, rows, ns as u64);
            (ns / machine(answering, 0), rows)
        };
        (0..waves).map(wave).collect()
    }

    const MACHINES: [(&str, Machine); 3] = [
        ("compute", |d, p| 1e6 + 1e5 * (d + p) as f64),
        ("experts", |d, p| 2e6 + 2e6 * libm::pow((d + p) as f64, 0.6)),
        ("memory", |d, p| 2e7 + 1e3 * (d + p) as f64),
    ];

    #[test]
    fn answers_keep_their_pace_and_prompts_get_what_is_left() {
        for (name, machine) in MACHINES {
            for answering in [1, 4] {
                let mut pace = Pace::new(Some(1.75), 4, 128);
                let seen = drive(&mut pace, machine, answering, 400);
                assert_eq!(seen[0].1, 0, "{name}: the first wave is measured without");
                let slow = seen.iter().filter(|wave| wave.0 > 2.0).count();
                assert!(slow <= 4, "{name}: {slow} of 400 waves take more than twice as long");
                // The most rows that this machine allows, by trying.
                let fits = |&rows: &usize| machine(answering, rows) <= 1.75 * machine(answering, 0);
                let best = (1..=128).rev().find(fits).unwrap_or(1);
                let mean = seen[100..].iter().map(|wave| wave.1).sum::<usize>() as f64 / 300.0;
                assert!(mean >= 0.8 * best as f64 - 1.0, "{name}: {mean} rows of {best}");
            }
        }
    }

    #[test]
    fn a_machine_that_becomes_slower_is_followed() {
        let mut pace = Pace::new(Some(1.75), 1, 128);
        drive(&mut pace, |d, p| 1e7 + 1e5 * (d + p) as f64, 1, 200);
        let dearer: Machine = |d, p| 1e7 + 1e6 * (d + p) as f64;
        let seen = drive(&mut pace, dearer, 1, 200);
        assert!(seen[20..].iter().all(|wave| wave.0 < 2.0), "{seen:?}");
    }

    #[test]
    fn prompts_have_all_rows_where_nobody_answers_or_nothing_is_asked() {
        assert_eq!(Pace::new(Some(1.75), 4, 128).prompt_rows(0, 0), usize::MAX);
        assert_eq!(Pace::new(None, 4, 128).prompt_rows(3, 3), usize::MAX);
    }

    #[test]
    fn prompts_go_on_beside_answers_in_waves_of_their_own() {
        let mut pace = Pace::new(Some(1.75), 2, 128);
        let mut rows = 0;
        for _ in 0..40 {
            // Two sequences answer, each in a wave of its own, and a prompt fills what is left.
            for _ in 0..2 {
                let beside = pace.prompt_rows(2, 1).min(8);
                pace.handed_in(1, beside);
                let alone = pace.prompt_rows(2, 0).min(8);
                pace.handed_in(0, alone);
                pace.took(0, alone, 10_000 * alone as u64);
                pace.took(1, beside, 1_000_000 + 10_000 * beside as u64);
                rows += beside + alone;
            }
        }
        assert!(rows > 300, "{rows}");
    }

    #[test]
    fn waves_of_prompts_alone_count_against_the_answers_in_flight() {
        let mut pace = Pace::new(Some(1.75), 2, 128);
        pace.took(1, 0, 1_000_000);
        let first = pace.prompt_rows(1, 1);
        pace.handed_in(1, first - 1);
        assert_eq!(pace.prompt_rows(1, 0), 1, "what the answers' wave left");
        pace.handed_in(0, 1);
        assert_eq!(pace.prompt_rows(1, 0), 0);
        assert_eq!(pace.prompt_rows(1, 1), first, "a new wave of answers");
        pace.took(0, 4, 900_000);
        pace.took(1, 0, 900_000);
        assert!(pace.prompt_rows(1, 1) < first, "together they took too long");
    }
}
