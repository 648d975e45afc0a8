//! Which token prefixes are cached: their KV blocks, and at some of them a snapshot of the state.
//!
//! Edges hold whole blocks of tokens, so that sequences share blocks. A prefix that ends inside a block
//! ends with a *tail*: a leaf of less than a block, in a block of its own that nobody shares or writes;
//! who resumes there gets a copy.
//!
//! A prefix can be resumed only where a snapshot exists, since a recurrent layer cannot start in the
//! middle. So a node without a snapshot is there for a lease that holds it, for a tail, or because it
//! branches in two; anything else is merged away.
//!
//! Recency belongs to snapshots: a node is used when a sequence resumes from it or publishes it. The node
//! whose blocks a lease shares is locked and stays; its ancestors stay because it does.

use crate::{BLOCK_LEN, blocks_for};

/// Names a node as long as it is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

/// The tree; ids in it are owned by it.
#[derive(Debug)]
pub(crate) struct RadixTree {
    /// Removed nodes leave a hole that is filled again.
    nodes: Vec<Option<Node>>,
    clock: u64,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    children: Vec<NodeId>,
    /// Tokens from the parent to this node: one block length for each of `blocks`, or a tail.
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    /// Slot with the state after all tokens from the root to here.
    snapshot: Option<u32>,
    n_locks: usize,
    last_used: u64,
}

/// Where some tokens can be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The node whose blocks are shared: the last whole block of the prefix.
    pub(crate) node: NodeId,
    /// Slot of the snapshot.
    pub(crate) snapshot: u32,
    /// Block to copy, if the prefix ends with a tail.
    pub(crate) tail: Option<u32>,
    /// Tokens of the prefix.
    pub(crate) n_tokens: usize,
}

/// How far the tree knows some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    /// The deepest node whose tokens all match.
    node: NodeId,
    /// Tokens up to it.
    n_tokens: usize,
    /// A child whose edge matches for this many blocks, not all of them.
    inside: Option<(NodeId, usize)>,
}

/// What eviction took out of the tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) blocks: Vec<u32>,
    pub(crate) slot: Option<u32>,
}

/// A prefix to publish: its tokens, and the ids that the tree takes where it does not know them.
pub(crate) struct Publication<'a> {
    pub(crate) tokens: &'a [u32],
    /// Its whole blocks.
    pub(crate) blocks: &'a [u32],
    /// The block of what is left after them, if anything is.
    pub(crate) tail: Option<u32>,
    /// The slot of the snapshot.
    pub(crate) slot: u32,
}

/// The part of a published prefix that the tree did not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// The node at the end of its whole blocks.
    pub(crate) node: NodeId,
    /// Whole blocks `first_new..` of the prefix are the tree's now.
    pub(crate) first_new: usize,
}

impl RadixTree {
    pub(crate) fn new() -> RadixTree {
        let root = Node {
            parent: ROOT,
            children: Vec::new(),
            tokens: Vec::new(),
            blocks: Vec::new(),
            snapshot: None,
            n_locks: 0,
            last_used: 0,
        };
        RadixTree { nodes: vec![Some(root)], clock: 0 }
    }

    /// The longest prefix of `tokens` with a snapshot; and how many tokens the tree knows in whole blocks,
    /// resumable or not.
    pub(crate) fn find(&self, tokens: &[u32]) -> (Option<Found>, usize) {
        let Walk { mut node, mut n_tokens, inside } = self.walk(tokens);
        let n_known = n_tokens + inside.map_or(0, |(_, n_blocks)| n_blocks * BLOCK_LEN);
        loop {
            if let Some(found) = self.find_at(node, n_tokens, tokens) {
                return (Some(found), n_known);
            }
            if node == ROOT {
                return (None, n_known);
            }
            n_tokens -= self.node(node).tokens.len();
            node = self.node(node).parent;
        }
    }

    /// The longest prefix with a snapshot that shares the blocks up to `node`, after `n_tokens`.
    fn find_at(&self, node: NodeId, n_tokens: usize, tokens: &[u32]) -> Option<Found> {
        let rest = &tokens[n_tokens..];
        let children = self.node(node).children.iter().map(|&child| self.node(child));
        let tails = children.filter(|child| child.is_tail() && rest.starts_with(&child.tokens));
        let tail = tails.max_by_key(|tail| tail.tokens.len());
        let (snapshot, tail, n_more) = match tail {
            Some(tail) => (tail.snapshot, Some(tail.blocks[0]), tail.tokens.len()),
            None => (self.node(node).snapshot, None, 0),
        };
        Some(Found { node, snapshot: snapshot?, tail, n_tokens: n_tokens + n_more })
    }

    /// Whether these tokens end at a node with a snapshot.
    pub(crate) fn has_snapshot(&self, tokens: &[u32]) -> bool {
        self.find(tokens).0.is_some_and(|found| found.n_tokens == tokens.len())
    }

    /// The blocks from the root to a node, in order.
    pub(crate) fn path_blocks(&self, node: NodeId) -> Vec<u32> {
        let mut edges: Vec<&[u32]> = Vec::new();
        let mut at = node;
        while at != ROOT {
            edges.push(&self.node(at).blocks);
            at = self.node(at).parent;
        }
        edges.into_iter().rev().flatten().copied().collect()
    }

    /// Marks the node with this snapshot as used.
    pub(crate) fn touch(&mut self, snapshot: u32) {
        self.clock += 1;
        let nodes = self.nodes.iter_mut().flatten();
        let found = nodes.filter(|node| node.snapshot == Some(snapshot));
        found.for_each(|node| node.last_used = self.clock);
    }

    /// Protects a node.
    pub(crate) fn lock(&mut self, node: NodeId) {
        self.node_mut(node).n_locks += 1;
    }

    /// Gives up a lock; returns the blocks that only it kept.
    pub(crate) fn unlock(&mut self, node: NodeId) -> Vec<u32> {
        self.node_mut(node).n_locks -= 1;
        self.tidy(node)
    }

    /// Adds a prefix that ends with a snapshot. The tree takes the whole blocks that it does not know, and
    /// the tail. There must be no snapshot at its end yet.
    pub(crate) fn publish(&mut self, prefix: &Publication<'_>) -> Published {
        let Publication { tokens, blocks, tail, slot } = *prefix;
        let (whole, rest) = tokens.split_at(blocks.len() * BLOCK_LEN);
        assert!(rest.len() < BLOCK_LEN && rest.is_empty() == tail.is_none(), "blocks hold tokens");
        let Walk { mut node, mut n_tokens, inside } = self.walk(whole);
        if let Some((child, n_blocks)) = inside {
            node = self.split(child, n_blocks);
            n_tokens += n_blocks * BLOCK_LEN;
        }
        let first_new = n_tokens / BLOCK_LEN;
        if first_new < blocks.len() {
            node = self.insert_child(node, &whole[n_tokens..], &blocks[first_new..]);
        }
        let end = match tail {
            Some(block) => self.insert_child(node, rest, &[block]),
            None => node,
        };
        self.clock += 1;
        let clock = self.clock;
        let end = self.node_mut(end);
        assert!(end.snapshot.is_none(), "the prefix has a snapshot already");
        end.snapshot = Some(slot);
        end.last_used = clock;
        Published { node, first_new }
    }

    /// Drops the least recently used prefix that nobody holds and nothing continues.
    pub(crate) fn evict_leaf(&mut self) -> Option<Evicted> {
        self.evict(|node| node.children.is_empty())
    }

    /// Drops the least recently used snapshot that nobody holds, and blocks that it alone made useful.
    pub(crate) fn evict_snapshot(&mut self) -> Option<Evicted> {
        self.evict(|node| node.snapshot.is_some())
    }

    /// Blocks of prefixes that nobody holds: all of them could be evicted.
    pub(crate) fn n_evictable_blocks(&self) -> usize {
        let mut held = vec![false; self.nodes.len()];
        for (i, node) in self.all() {
            let mut at = i;
            while node.n_locks > 0 && at != ROOT && !held[at.0] {
                held[at.0] = true;
                at = self.node(at).parent;
            }
        }
        self.all().filter(|(i, _)| !held[i.0]).map(|(_, node)| node.blocks.len()).sum()
    }

    pub(crate) fn n_snapshots(&self) -> usize {
        self.all().filter(|(_, node)| node.snapshot.is_some()).count()
    }

    /// All blocks and snapshot slots of the tree.
    pub(crate) fn ids(&self) -> (Vec<u32>, Vec<u32>) {
        let blocks = self.all().flat_map(|(_, node)| node.blocks.iter().copied()).collect();
        let slots = self.all().filter_map(|(_, node)| node.snapshot).collect();
        (blocks, slots)
    }

    /// Panics unless the tree has its form; `n_locks` is the number of leases that hold a node.
    pub(crate) fn check_integrity(&self, n_locks: usize) {
        let mut n_locks_seen = 0;
        for (id, node) in self.all() {
            n_locks_seen += node.n_locks;
            for &child in &node.children {
                assert_eq!(self.node(child).parent, id, "a child names another parent");
            }
            let children = node.children.iter().map(|&child| &self.node(child).tokens[..]);
            let first_block = |tokens: &'_ [u32]| tokens[..tokens.len().min(BLOCK_LEN)].to_vec();
            let mut firsts: Vec<Vec<u32>> = children.map(first_block).collect();
            firsts.sort_unstable();
            assert!(firsts.is_sorted_by(|a, b| a < b), "two children begin alike");
            if id != ROOT {
                self.check_form(node);
            }
        }
        assert_eq!(n_locks_seen, n_locks, "locks and leases disagree");
    }

    fn check_form(&self, node: &Node) {
        assert!(!node.tokens.is_empty(), "an empty edge");
        assert_eq!(node.blocks.len(), blocks_for(node.tokens.len()), "blocks hold the edge");
        if node.is_tail() {
            assert_eq!((node.blocks.len(), node.children.len(), node.n_locks), (1, 0, 0), "a tail");
        }
        let branches = match node.children[..] {
            [] => false,
            [child] => self.node(child).is_tail(),
            _ => true,
        };
        assert!(node.snapshot.is_some() || node.n_locks > 0 || branches, "a useless node");
    }

    fn walk(&self, tokens: &[u32]) -> Walk {
        let mut walk = Walk { node: ROOT, n_tokens: 0, inside: None };
        loop {
            let rest = &tokens[walk.n_tokens..];
            let matched = self.node(walk.node).children.iter().find_map(|&child| {
                let n_blocks = n_common_blocks(&self.node(child).tokens, rest);
                (n_blocks > 0).then_some((child, n_blocks))
            });
            let Some((child, n_blocks)) = matched else { return walk };
            if n_blocks < self.node(child).blocks.len() {
                walk.inside = Some((child, n_blocks));
                return walk;
            }
            walk.node = child;
            walk.n_tokens += n_blocks * BLOCK_LEN;
        }
    }

    /// Puts a node into the edge of `lower` after `n_blocks` blocks; `lower` keeps its name and locks.
    fn split(&mut self, lower: NodeId, n_blocks: usize) -> NodeId {
        let node = self.node_mut(lower);
        let parent = node.parent;
        let blocks: Vec<u32> = node.blocks.drain(..n_blocks).collect();
        let tokens: Vec<u32> = node.tokens.drain(..n_blocks * BLOCK_LEN).collect();
        let upper = Node {
            parent,
            children: vec![lower],
            tokens,
            blocks,
            snapshot: None,
            n_locks: 0,
            last_used: 0,
        };
        let upper = self.insert(upper);
        self.node_mut(lower).parent = upper;
        self.replace_child(parent, lower, upper);
        upper
    }

    /// Takes the snapshot of the least recently used of the unlocked nodes that `may_go`.
    fn evict(&mut self, may_go: impl Fn(&Node) -> bool) -> Option<Evicted> {
        let unlocked = self.all().filter(|(id, n)| *id != ROOT && n.n_locks == 0 && may_go(n));
        let (id, _) = unlocked.min_by_key(|(_, node)| node.last_used)?;
        let slot = self.node_mut(id).snapshot.take();
        Some(Evicted { blocks: self.tidy(id), slot })
    }

    /// Restores the form of the tree around a node that lost its snapshot or a lock; returns the blocks
    /// let go.
    fn tidy(&mut self, id: NodeId) -> Vec<u32> {
        let (mut at, mut freed) = (id, Vec::new());
        loop {
            let node = self.node(at);
            let parent = node.parent;
            if at == ROOT || node.snapshot.is_some() || node.n_locks > 0 {
                return freed;
            }
            match node.children[..] {
                [] => {
                    freed.append(&mut self.remove(at).blocks);
                    self.node_mut(parent).children.retain(|&child| child != at);
                    // Its parent may have been there only because of it.
                    at = parent;
                }
                [child] if !self.node(child).is_tail() => {
                    let mut upper = self.remove(at);
                    let lower = self.node_mut(child);
                    upper.tokens.append(&mut lower.tokens);
                    upper.blocks.append(&mut lower.blocks);
                    (lower.tokens, lower.blocks, lower.parent) =
                        (upper.tokens, upper.blocks, parent);
                    self.replace_child(parent, at, child);
                    return freed;
                }
                _ => return freed,
            }
        }
    }

    fn replace_child(&mut self, parent: NodeId, old: NodeId, new: NodeId) {
        let children = &mut self.node_mut(parent).children;
        let place = children.iter_mut().find(|child| **child == old);
        *place.expect("a node is among its parent's children") = new;
    }

    fn insert_child(&mut self, parent: NodeId, tokens: &[u32], blocks: &[u32]) -> NodeId {
        let child = self.insert(Node {
            parent,
            children: Vec::new(),
            tokens: tokens.to_vec(),
            blocks: blocks.to_vec(),
            snapshot: None,
            n_locks: 0,
            last_used: 0,
        });
        self.node_mut(parent).children.push(child);
        child
    }

    fn insert(&mut self, node: Node) -> NodeId {
        let hole = self.nodes.iter().position(Option::is_none);
        let index = hole.unwrap_or(self.nodes.len());
        if hole.is_none() {
            self.nodes.push(None);
        }
        self.nodes[index] = Some(node);
        NodeId(index)
    }

    fn remove(&mut self, id: NodeId) -> Node {
        self.nodes[id.0].take().expect("the node is in the tree")
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("the node is in the tree")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("the node is in the tree")
    }

    fn all(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(i, node)| Some((NodeId(i), node.as_ref()?)))
    }
}

impl Node {
    /// Whether it ends inside a block.
    fn is_tail(&self) -> bool {
        !self.tokens.len().is_multiple_of(BLOCK_LEN)
    }
}

/// Whole blocks that two runs of tokens have in common from the start.
fn n_common_blocks(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(BLOCK_LEN).zip(b.chunks_exact(BLOCK_LEN));
    blocks.take_while(|(a, b)| a == b).count()
}
