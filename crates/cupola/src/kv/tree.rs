//! Blocks by the tokens that they hold: a tree whose paths are beginnings of sequences.

use cupola_graph::BLOCK_TOKENS;

/// Names a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(usize);

/// A block with known content. A node with fewer than [`BLOCK_TOKENS`] tokens has no children.
#[derive(Debug)]
struct Node {
    regime: usize,
    parent: Option<NodeId>,
    tokens: Vec<u32>,
    block: u32,
    children: Vec<NodeId>,
    /// Sequences that have the block in their table, or will copy it.
    users: usize,
    /// Time of the last use.
    used: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
    /// First blocks of sequences, by regime.
    roots: Vec<Vec<NodeId>>,
    clock: u64,
}

impl Tree {
    /// The child that shares most tokens with `rest`, and how many; of equal ones the shortest. None if no child
    /// shares any.
    pub(super) fn best_child(&self, regime: usize, parent: Option<NodeId>, rest: &[u32]) -> Option<(NodeId, usize)> {
        let shared = |id: &NodeId| self.tokens(*id).iter().zip(rest).take_while(|(a, b)| a == b).count();
        let children = self.children(regime, parent).iter().map(|id| (*id, shared(id)));
        let best = children.max_by_key(|(id, common)| (*common, std::cmp::Reverse(self.tokens(*id).len())));
        best.filter(|(_, common)| *common > 0)
    }

    /// Adds a block below `parent` and gives its node. If its tokens are there already, that node is given, and the
    /// block comes back as not needed. Nodes that the new one makes superfluous go, and their blocks come back.
    pub(super) fn insert(
        &mut self,
        regime: usize,
        parent: Option<NodeId>,
        tokens: &[u32],
        block: u32,
    ) -> (NodeId, Vec<u32>) {
        let siblings = self.children(regime, parent);
        if let Some(&id) = siblings.iter().find(|id| self.tokens(**id).starts_with(tokens)) {
            self.touch(id);
            return (id, vec![block]);
        }
        let shorter = |id: &&NodeId| self.is_free(**id) && tokens.starts_with(self.tokens(**id));
        let superfluous: Vec<NodeId> = siblings.iter().filter(shorter).copied().collect();
        let freed = superfluous.into_iter().map(|id| self.remove(id)).collect();
        let node = Node { regime, parent, tokens: tokens.to_vec(), block, children: vec![], users: 0, used: 0 };
        let id = NodeId(self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        }));
        self.nodes[id.0] = Some(node);
        self.children_mut(regime, parent).push(id);
        self.touch(id);
        (id, freed)
    }

    /// Takes a node without users and children out, and gives its block.
    pub(super) fn remove(&mut self, id: NodeId) -> u32 {
        debug_assert!(self.is_free(id));
        let Some(node) = self.nodes[id.0].take() else { unreachable!("node {id:?} was removed before") };
        self.children_mut(node.regime, node.parent).retain(|c| *c != id);
        self.vacant.push(id.0);
        node.block
    }

    /// Takes the least recently used node without users and children out, and gives its block.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let ids = (0..self.nodes.len()).map(NodeId).filter(|id| self.nodes[id.0].is_some());
        let oldest = ids.filter(|id| self.is_free(*id)).min_by_key(|id| self.node(*id).used)?;
        Some(self.remove(oldest))
    }

    /// Whether a node has neither users nor children.
    pub(super) fn is_free(&self, id: NodeId) -> bool {
        self.node(id).users == 0 && self.node(id).children.is_empty()
    }

    pub(super) fn take_user(&mut self, id: NodeId) {
        self.node_mut(id).users += 1;
        self.touch(id);
    }

    pub(super) fn drop_user(&mut self, id: NodeId) {
        self.node_mut(id).users -= 1;
        self.touch(id);
    }

    /// Nodes without users.
    pub(super) fn unused(&self) -> usize {
        self.nodes.iter().flatten().filter(|n| n.users == 0).count()
    }

    pub(super) fn tokens(&self, id: NodeId) -> &[u32] {
        &self.node(id).tokens
    }

    pub(super) fn block(&self, id: NodeId) -> u32 {
        self.node(id).block
    }

    /// The blocks of all nodes.
    #[cfg(test)]
    pub(super) fn all_blocks(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().flatten().map(|n| n.block)
    }

    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        self.node_mut(id).used = self.clock;
    }

    fn children(&self, regime: usize, parent: Option<NodeId>) -> &[NodeId] {
        match parent {
            Some(id) => &self.node(id).children,
            None => self.roots.get(regime).map_or(&[], Vec::as_slice),
        }
    }

    fn children_mut(&mut self, regime: usize, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(id) => {
                debug_assert_eq!(self.tokens(id).len(), BLOCK_TOKENS);
                &mut self.node_mut(id).children
            }
            None => {
                if self.roots.len() <= regime {
                    self.roots.resize_with(regime + 1, Vec::new);
                }
                &mut self.roots[regime]
            }
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        match &self.nodes[id.0] {
            Some(node) => node,
            // Ids are only held by parents, users and children, and a node that has any of the latter two stays.
            None => unreachable!("node {id:?} was removed"),
        }
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        match &mut self.nodes[id.0] {
            Some(node) => node,
            None => unreachable!("node {id:?} was removed"),
        }
    }
}
