//! The prefix cache: which full blocks hold the KV of which tokens.
//!
//! **Hashes route; tokens decide.** An entry hangs below its parent, or below a root that is compared
//! in full, and keeps its tokens; a match walks from the root and compares them. The sequence hash is
//! only the entry's name in KV events.
//!
//! Whoever holds a block holds all blocks above it, so below an idle block there are only idle ones:
//! eviction takes leaves first and reaches all of them. Each entry is the content of one block, so the
//! cache is bounded by the pool.

mod lru;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::ids::BlockId;
use crate::domain::kv_events::SequenceHash;
use crate::domain::request::CacheRoot;
use crate::domain::time::Time;
use lru::{Age, Victims};

/// Which idle block goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// The oldest; a block that was hit at least once counts as half as old.
    #[default]
    TwoSegment,
    /// The oldest.
    Lru,
}

impl Eviction {
    /// Name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::TwoSegment => "two-segment",
            Self::Lru => "lru",
        }
    }
}

type Children = HashMap<Arc<[u32]>, BlockId>;

#[derive(Debug)]
enum Parent {
    Root(Arc<CacheRoot>),
    Block(BlockId),
}

#[derive(Debug)]
struct Node {
    parent: Parent,
    tokens: Arc<[u32]>,
    children: Children,
    hash: SequenceHash,
    idle: bool,
    age: Age,
}

/// What an insertion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The block is now the entry of its tokens.
    New,
    /// This block is the entry of these tokens already.
    Exists(BlockId),
}

/// The tree of cached blocks and the order of their eviction.
#[derive(Debug)]
pub struct PrefixCache {
    roots: HashMap<Arc<CacheRoot>, Children>,
    /// By block index.
    nodes: Vec<Option<Node>>,
    len: usize,
    leaves: Victims,
    tick: u64,
}

impl PrefixCache {
    /// An empty cache for a pool of `blocks` blocks.
    pub fn new(blocks: usize, eviction: Eviction) -> Self {
        Self {
            roots: HashMap::new(),
            nodes: std::iter::repeat_with(|| None).take(blocks).collect(),
            len: 0,
            leaves: Victims::new(eviction),
            tick: 0,
        }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn node(&self, block: BlockId) -> &Node {
        self.nodes[block.index()].as_ref().expect("a cached block has an entry")
    }

    fn node_mut(&mut self, block: BlockId) -> &mut Node {
        self.nodes[block.index()].as_mut().expect("a cached block has an entry")
    }

    /// The cached blocks of the longest prefix of `tokens`, in order: whole blocks of `block_size`
    /// tokens, at most `most` of them. Changes nothing.
    pub fn longest_prefix(
        &self,
        root: &CacheRoot,
        tokens: impl Iterator<Item = u32>,
        block_size: usize,
        most: usize,
    ) -> Vec<BlockId> {
        let mut found = Vec::new();
        let Some(mut children) = self.roots.get(root) else { return found };
        let mut tokens = tokens;
        let mut block_tokens = Vec::with_capacity(block_size);
        while found.len() < most {
            block_tokens.clear();
            block_tokens.extend(tokens.by_ref().take(block_size));
            if block_tokens.len() < block_size {
                break;
            }
            let Some(block) = children.get(block_tokens.as_slice()) else { break };
            found.push(*block);
            children = &self.node(*block).children;
        }
        found
    }

    /// Makes `block` the entry of `tokens` below `parent` (below `root` without one). The block and its
    /// parent are held by the caller.
    pub fn insert(
        &mut self,
        root: &Arc<CacheRoot>,
        parent: Option<BlockId>,
        tokens: Arc<[u32]>,
        block: BlockId,
        hash: SequenceHash,
        now: Time,
    ) -> Inserted {
        let children = match parent {
            Some(parent) => &mut self.node_mut(parent).children,
            None => self.roots.entry(Arc::clone(root)).or_default(),
        };
        if let Some(existing) = children.get(&tokens) {
            return Inserted::Exists(*existing);
        }
        children.insert(Arc::clone(&tokens), block);
        let parent = parent.map_or_else(|| Parent::Root(Arc::clone(root)), Parent::Block);
        let age = Age { hit: false, last_used: now, tick: self.next_tick() };
        let node = Node { parent, tokens, children: Children::new(), hash, idle: false, age };
        debug_assert!(self.nodes[block.index()].is_none(), "a block has one content");
        self.nodes[block.index()] = Some(node);
        self.len += 1;
        Inserted::New
    }

    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// The entry is used again, for the first time since it was idle or not. `hit`: by a request other
    /// than the one that made it.
    pub fn hold(&mut self, block: BlockId, hit: bool, now: Time) {
        let tick = self.next_tick();
        let node = self.node_mut(block);
        let before = node.age;
        let was_waiting = node.idle && node.children.is_empty();
        node.idle = false;
        node.age = Age { hit: before.hit || hit, last_used: now, tick };
        if was_waiting {
            self.leaves.remove(block, before);
        }
    }

    /// Nobody holds the entry any more: it may be evicted once it is a leaf.
    pub fn idle(&mut self, block: BlockId, now: Time) {
        let tick = self.next_tick();
        let node = self.node_mut(block);
        debug_assert!(!node.idle, "idle once");
        node.idle = true;
        node.age.last_used = now;
        node.age.tick = tick;
        let (leaf, age) = (node.children.is_empty(), node.age);
        if leaf {
            self.leaves.insert(block, age);
        }
    }

    /// Takes the next victim out of the cache; `None` when nothing is idle.
    pub fn evict(&mut self, now: Time) -> Option<(BlockId, SequenceHash)> {
        let victim = self.leaves.pop(now)?;
        let node = self.nodes[victim.index()].take().expect("a victim has an entry");
        self.len -= 1;
        match node.parent {
            Parent::Root(root) => {
                if let Some(children) = self.roots.get_mut(&root) {
                    children.remove(&node.tokens);
                    if children.is_empty() {
                        self.roots.remove(&root);
                    }
                }
            }
            Parent::Block(parent) => {
                let above = self.node_mut(parent);
                above.children.remove(&node.tokens);
                let (leaf, age) = (above.idle && above.children.is_empty(), above.age);
                if leaf {
                    self.leaves.insert(parent, age);
                }
            }
        }
        Some((victim, node.hash))
    }

    /// Time since the last use of the next victim.
    pub fn next_victim_age(&self, now: Time) -> Option<Duration> {
        self.leaves.next_age(now)
    }

    /// All entries with their sequence hashes, by block.
    pub fn entries(&self) -> impl Iterator<Item = (BlockId, SequenceHash)> {
        self.nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| node.as_ref().map(|node| (BlockId(index as u32), node.hash)))
    }

    /// Whether the entry is waiting for eviction or for a leaf below it to go.
    pub fn is_idle(&self, block: BlockId) -> bool {
        self.nodes[block.index()].as_ref().is_some_and(|node| node.idle)
    }

    /// Verifies links, idleness below idle entries and the set of victims.
    ///
    /// # Errors
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut leaves = 0;
        let mut entries = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            entries += 1;
            let block = BlockId(index as u32);
            let siblings = match &node.parent {
                Parent::Root(root) => self.roots.get(root),
                Parent::Block(parent) => {
                    let above = self.nodes[parent.index()].as_ref();
                    if above.is_some_and(|above| above.idle && !node.idle) {
                        return Err(format!("{block:?} is held below idle {parent:?}"));
                    }
                    above.map(|above| &above.children)
                }
            };
            if siblings.and_then(|siblings| siblings.get(&node.tokens)) != Some(&block) {
                return Err(format!("{block:?} is not below its parent"));
            }
            if node.idle && node.children.is_empty() {
                leaves += 1;
                if !self.leaves.contains(block, node.age) {
                    return Err(format!("idle leaf {block:?} waits for no eviction"));
                }
            }
        }
        if entries != self.len || leaves != self.leaves.len() {
            return Err(format!(
                "{entries} entries, {leaves} leaves; kept {}, {}",
                self.len,
                self.leaves.len()
            ));
        }
        if self.roots.values().any(HashMap::is_empty) {
            return Err("a root without entries is kept".to_owned());
        }
        Ok(())
    }
}
