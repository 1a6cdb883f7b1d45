//! The page table's tests: what it finds, and that no page is freed while it is read, and none leaks.

use super::*;
use proptest::prelude::*;

const BLOCK: usize = KV_BLOCK_ROWS;

/// Tokens whose blocks are all of one token each, so that prompts of equal beginnings are easy to say.
fn text(blocks: &[u32]) -> Vec<u32> {
    blocks.iter().flat_map(|&token| [token; BLOCK]).collect()
}

fn take(pages: &mut Pages, prompt: &[u32], count: usize) -> (PageTable, usize) {
    pages.take(prompt, count, true).expect("there are so many pages")
}

#[test]
fn a_prompt_begins_with_the_pages_of_its_longest_known_prefix() {
    let mut pages = Pages::new(8, true);
    let long = text(&[1, 2, 3]);
    let (mut first, cached) = take(&mut pages, &long, 4);
    assert_eq!(cached, 0);
    pages.publish(&mut first, &long[..2 * BLOCK + 5]);
    let (second, cached) = take(&mut pages, &text(&[1, 2, 9]), 3);
    assert_eq!((cached, &second.pages[..2]), (2 * BLOCK, &first.pages[..2]), "still running");
    pages.publish(&mut first, &long);
    pages.give_back(&first);
    pages.give_back(&second);
    let (third, cached) = take(&mut pages, &[long.clone(), vec![7]].concat(), 4);
    assert_eq!((cached, &third.pages[..3]), (3 * BLOCK, &first.pages[..3]), "ended");
    let (fourth, cached) = take(&mut pages, &long, 4);
    assert_eq!(cached, 2 * BLOCK, "the last token is always fed");
    assert_eq!(fourth.pages[..2], first.pages[..2]);
    let (_, cached) = pages.take(&text(&[2, 3, 4]), 0, true).expect("no page is wanted");
    assert_eq!(cached, 0);
}

#[test]
fn the_same_block_after_another_prefix_is_another_page() {
    let mut pages = Pages::new(8, true);
    for start in [1, 2] {
        let (mut table, cached) = take(&mut pages, &text(&[start, 5, 5]), 3);
        assert_eq!(cached, 0);
        pages.publish(&mut table, &text(&[start, 5]));
        pages.give_back(&table);
    }
    let (table, cached) = take(&mut pages, &text(&[2, 5, 6]), 3);
    assert_eq!(cached, 2 * BLOCK);
    assert_eq!(pages.pages[table.pages[1] as usize].parent, table.pages[0]);
}

#[test]
fn one_content_that_two_sequences_computed_side_by_side_is_kept_once() {
    let mut pages = Pages::new(4, true);
    let prompt = text(&[1, 2]);
    let (mut first, _) = take(&mut pages, &prompt, 2);
    let (mut second, _) = take(&mut pages, &prompt, 2);
    assert!(pages.take(&prompt, 2, true).is_none(), "all four are theirs");
    pages.publish(&mut first, &prompt);
    pages.publish(&mut second, &prompt);
    assert_eq!(first.pages, second.pages);
    assert!(pages.take(&text(&[3]), 2, true).is_some(), "two are free again");
}

#[test]
fn what_was_used_longest_ago_goes_first_and_children_before_parents() {
    let mut pages = Pages::new(4, true);
    for start in [1, 2] {
        let (mut table, _) = take(&mut pages, &text(&[start, 5]), 2);
        pages.publish(&mut table, &text(&[start, 5]));
        pages.give_back(&table);
    }
    let probe = |pages: &mut Pages, start: u32| {
        let (table, cached) = take(pages, &text(&[start, 5, 6]), 2);
        pages.give_back(&table);
        cached / BLOCK
    };
    assert_eq!(probe(&mut pages, 1), 2, "1 is the younger now");
    let (table, _) = take(&mut pages, &text(&[8]), 1);
    pages.give_back(&table);
    assert_eq!(probe(&mut pages, 2), 1, "2 has lost its end");
    assert_eq!(probe(&mut pages, 1), 2);
}

#[test]
fn a_table_that_shares_nothing_finds_nothing() {
    for (shares, share) in [(false, true), (true, false)] {
        let mut pages = Pages::new(4, shares);
        let prompt = text(&[1, 2]);
        let (mut table, _) = pages.take(&prompt, 2, share).expect("there are enough");
        pages.publish(&mut table, &prompt);
        pages.give_back(&table);
        assert_eq!(pages.take(&prompt, 2, share).expect("there are enough").1, 0);
    }
}

/// What a sequence of the model does next.
#[derive(Clone, Debug)]
enum Step {
    Begin {
        blocks: Vec<u32>,
        more: usize,
        share: bool,
    },
    /// The sequence at this place (modulo how many there are) is fed so many tokens more.
    Feed(usize, usize),
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let begin = (prop::collection::vec(0u32..3, 1..5), 0usize..3, any::<bool>());
    let begin = begin.prop_map(|(blocks, more, share)| Step::Begin { blocks, more, share });
    let feed = (0usize..8, 1usize..200).prop_map(|(place, tokens)| Step::Feed(place, tokens));
    let end = (0usize..8).prop_map(Step::End);
    prop::collection::vec(prop_oneof![3 => begin, 5 => feed, 2 => end], 1..120)
}

/// A sequence as the scheduler has it.
struct Running {
    table: PageTable,
    tokens: Vec<u32>,
    fed: usize,
}

/// What every page holds in truth: whoever feeds a position writes its token there.
struct World {
    pages: Pages,
    running: Vec<Running>,
    held: Vec<Vec<Option<(usize, u32)>>>,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Begin { blocks, more, share } => {
                let tokens = text(&blocks);
                let count = blocks.len() + more;
                if let Some((table, fed)) = self.pages.take(&tokens, count, share) {
                    assert!(fed < tokens.len(), "the last token is fed");
                    self.running.push(Running { table, tokens, fed });
                }
            }
            Step::Feed(place, count) if !self.running.is_empty() => {
                let place = place % self.running.len();
                let Running { table, tokens, fed } = &mut self.running[place];
                let end = (*fed + count).min(table.pages.len() * BLOCK);
                tokens.resize(tokens.len().max(end), 1);
                for (position, &token) in tokens.iter().enumerate().take(end).skip(*fed) {
                    let page = table.pages[position / BLOCK] as usize;
                    self.held[page][position % BLOCK] = Some((position, token));
                }
                *fed = end;
                self.pages.publish(table, &tokens[..end]);
            }
            Step::End(place) if !self.running.is_empty() => {
                let ended = self.running.swap_remove(place % self.running.len());
                self.pages.give_back(&ended.table);
            }
            _ => {}
        }
        self.check();
    }

    fn check(&self) {
        let mut readers = vec![0; self.pages.pages.len()];
        for Running { table, tokens, fed } in &self.running {
            table.pages.iter().for_each(|&page| readers[page as usize] += 1);
            // Nobody's pages were written by others: each fed position is where it was put.
            for (position, &token) in tokens.iter().enumerate().take(*fed) {
                let page = table.pages[position / BLOCK] as usize;
                let wanted = Some((position, token));
                assert_eq!(self.held[page][position % BLOCK], wanted, "position {position}");
            }
        }
        let mut free = vec![false; readers.len()];
        for &page in &self.pages.free {
            assert!(!std::mem::replace(&mut free[page as usize], true), "free twice");
        }
        for (id, page) in self.pages.pages.iter().enumerate() {
            assert_eq!(page.readers, readers[id], "page {id}");
            assert!(!free[id] || page.readers == 0 && page.key.is_none(), "freed in use");
            assert!(free[id] || page.readers > 0 || page.key.is_some(), "page {id} leaks");
            if page.key.is_some() && page.parent != ROOT {
                let parent = &self.pages.pages[page.parent as usize];
                assert!(parent.key.is_some() && parent.depth + 1 == page.depth, "an orphan");
            }
        }
        let known = self.pages.pages.iter().filter(|page| page.key.is_some()).count();
        assert_eq!(known, self.pages.index.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With the real hash and with one that is nearly always wrong.
    #[test]
    fn no_page_is_freed_while_it_is_read_and_none_leaks(steps in steps(), poor in any::<bool>()) {
        let hash: Hash = if poor { |_, tokens| u64::from(tokens[0] % 2) } else { fnv };
        let held = vec![vec![None; BLOCK]; 12];
        let pages = Pages::with_hash(12, true, hash);
        let mut world = World { pages, running: vec![], held };
        for step in steps {
            world.step(step);
        }
        while !world.running.is_empty() {
            world.step(Step::End(0));
        }
        let all = world.pages.take(&[1], 12, false);
        prop_assert!(all.is_some(), "every page can be had again");
    }
}
