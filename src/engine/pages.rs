//! Who has which KV page, and what the pages hold: prompts begin with pages that are there already.
//!
//! Owned by the scheduler. A page is free, or a sequence's own, or *known*: whole, never written again,
//! and found by what it holds. Known pages form a tree: a page hangs on the one that holds the tokens
//! before it, so a page found by its parent and its own tokens has the whole prefix that was asked for;
//! tokens are compared one by one, the hash only says where to look. Many sequences read a known page. When
//! the last one has gone it stays, and it goes when pages are wanted, the longest unused first, children
//! before their parents.
//!
//! Attention gives the same bytes for the same tokens at the same positions, whoever computed them, so an
//! answer doesn't show whether its pages were shared. Tables and index are made once: in steady decode
//! nothing here allocates.

use millstream_stages::limits::KV_BLOCK_ROWS;
use std::collections::HashMap;

/// Where a page hangs that holds a sequence's first tokens.
const ROOT: u32 = u32::MAX;

/// Says where to look for a page: by its parent and its tokens.
type Hash = fn(u32, &[u32]) -> u64;

/// One page.
#[derive(Clone, Debug, Default)]
struct Page {
    /// Sequences that have it in their tables.
    readers: u32,
    /// Where it is found, if it is known.
    key: Option<u64>,
    /// The known page before it, or [`ROOT`].
    parent: u32,
    /// Pages before it.
    depth: u32,
    /// The last time that a sequence took it or gave it back.
    used_at: u64,
}

/// A sequence's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable {
    /// In order of position.
    pub pages: Vec<u32>,
    /// So many of them, from the first on, are known.
    known: usize,
}

/// All pages.
pub struct Pages {
    pages: Vec<Page>,
    /// By page: its tokens, if it is known.
    tokens: Vec<u32>,
    free: Vec<u32>,
    index: HashMap<u64, u32>,
    hash: Hash,
    clock: u64,
    /// Prompts begin with known pages.
    shares: bool,
}

impl Pages {
    /// So many pages, all free; nothing is ever known unless they are shared.
    pub fn new(count: usize, shares: bool) -> Pages {
        Pages::with_hash(count, shares, fnv)
    }

    fn with_hash(count: usize, shares: bool, hash: Hash) -> Pages {
        let known = if shares { count } else { 0 };
        Pages {
            pages: vec![Page::default(); count],
            tokens: vec![0; known * KV_BLOCK_ROWS],
            free: (0..count as u32).rev().collect(),
            // Twice as many: then the map cleans up in place instead of growing.
            index: HashMap::with_capacity(2 * known),
            hash,
            clock: 0,
            shares,
        }
    }

    /// Bytes that the tables hold.
    pub fn bytes(count: usize, shares: bool) -> usize {
        if !shares {
            return count * (size_of::<Page>() + 4);
        }
        let of_index = (2 * count * 8 / 7).next_power_of_two() * (size_of::<(u64, u32)>() + 1);
        count * (size_of::<Page>() + 4 * KV_BLOCK_ROWS + 4) + of_index
    }

    /// A table of `count` pages for a sequence that begins with `prompt`, and how many of the prompt's
    /// tokens they hold already; none while there aren't so many. At least the last token is left to be
    /// fed. Who doesn't `share` gets pages that hold nothing.
    pub fn take(
        &mut self,
        prompt: &[u32],
        count: usize,
        share: bool,
    ) -> Option<(PageTable, usize)> {
        let mut pages = Vec::with_capacity(count);
        if share && self.shares {
            self.find(prompt, count, &mut pages);
        }
        self.clock += 1;
        // Held first, so that none of them is taken for another's.
        for &page in &pages {
            self.hold(page);
        }
        let known = pages.len();
        let wanted = count - known;
        if self.free.len() < wanted && !self.forget(wanted - self.free.len()) {
            self.give_back(&PageTable { pages, known });
            return None;
        }
        for _ in 0..wanted {
            let page = self.free.pop().expect("counted above");
            self.hold(page);
            pages.push(page);
        }
        Some((PageTable { pages, known }, known * KV_BLOCK_ROWS))
    }

    /// The known pages that a prompt begins with, its last token left out.
    fn find(&self, prompt: &[u32], count: usize, into: &mut Vec<u32>) {
        let mut parent = ROOT;
        let whole = prompt[..prompt.len() - 1].chunks_exact(KV_BLOCK_ROWS);
        for tokens in whole.take(count) {
            let Some(page) = self.look_up(parent, tokens) else { return };
            into.push(page);
            parent = page;
        }
    }

    fn look_up(&self, parent: u32, tokens: &[u32]) -> Option<u32> {
        let page = *self.index.get(&(self.hash)(parent, tokens))?;
        let held = &self.tokens[page as usize * KV_BLOCK_ROWS..][..KV_BLOCK_ROWS];
        (self.pages[page as usize].parent == parent && held == tokens).then_some(page)
    }

    /// Makes the whole pages known that hold the `fed` tokens of a sequence, which has no rows in a wave.
    /// Where another sequence was first, its page takes the place of the sequence's own.
    pub fn publish(&mut self, table: &mut PageTable, fed: &[u32]) {
        if !self.shares {
            return;
        }
        while let Some(tokens) = fed.chunks_exact(KV_BLOCK_ROWS).nth(table.known) {
            let own = table.pages[table.known];
            let parent = table.known.checked_sub(1).map_or(ROOT, |before| table.pages[before]);
            if let Some(page) = self.look_up(parent, tokens) {
                self.hold(page);
                self.let_go(own);
                table.pages[table.known] = page;
            } else {
                let key = (self.hash)(parent, tokens);
                if self.index.contains_key(&key) {
                    // Two contents with one hash: the second isn't shared, nor what follows it.
                    return;
                }
                self.index.insert(key, own);
                let page = &mut self.pages[own as usize];
                (page.key, page.parent, page.depth) = (Some(key), parent, table.known as u32);
                self.tokens[own as usize * KV_BLOCK_ROWS..][..KV_BLOCK_ROWS]
                    .copy_from_slice(tokens);
            }
            table.known += 1;
        }
    }

    /// A sequence has ended.
    pub fn give_back(&mut self, table: &PageTable) {
        self.clock += 1;
        for &page in &table.pages {
            self.let_go(page);
        }
    }

    fn hold(&mut self, page: u32) {
        let page = &mut self.pages[page as usize];
        page.readers += 1;
        page.used_at = self.clock;
    }

    fn let_go(&mut self, page: u32) {
        let slot = &mut self.pages[page as usize];
        assert!(slot.readers > 0, "a page is given back more often than it was taken");
        slot.readers -= 1;
        slot.used_at = self.clock;
        if slot.readers == 0 && slot.key.is_none() {
            self.free.push(page);
        }
    }

    /// Frees so many known pages that nobody reads; false, and none of them, when there are fewer.
    fn forget(&mut self, count: usize) -> bool {
        let mut unread: Vec<u32> = (0..self.pages.len() as u32)
            .filter(|&page| {
                let page = &self.pages[page as usize];
                page.readers == 0 && page.key.is_some()
            })
            .collect();
        if unread.len() < count {
            return false;
        }
        // Whoever takes or leaves a page does so with all before it, so no parent is older than a child.
        unread.sort_unstable_by_key(|&page| {
            let page = &self.pages[page as usize];
            (page.used_at, std::cmp::Reverse(page.depth))
        });
        for &page in &unread[..count] {
            let key = self.pages[page as usize].key.take().expect("a known page");
            self.index.remove(&key);
            self.free.push(page);
        }
        true
    }
}

/// FNV-1a over words.
fn fnv(parent: u32, tokens: &[u32]) -> u64 {
    std::iter::once(&parent).chain(tokens).fold(0xcbf2_9ce4_8422_2325, |hash, &word| {
        (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
