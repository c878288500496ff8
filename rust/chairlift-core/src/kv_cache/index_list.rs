//! A doubly linked list of small integers, threaded through one `Vec`: every operation is O(1) and none
//! allocates. It holds the free blocks, and the snapshots that can be found, in LRU order.

const DETACHED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// A list of distinct indices below its capacity.
#[derive(Clone, Debug)]
pub(crate) struct IndexList {
    /// One link per index, and the sentinel last: its `next` is the front, its `prev` the back.
    links: Vec<Link>,
    len: usize,
}

impl IndexList {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let mut links = vec![
            Link {
                prev: DETACHED,
                next: DETACHED
            };
            capacity + 1
        ];
        let sentinel = capacity as u32;
        links[capacity] = Link {
            prev: sentinel,
            next: sentinel,
        };
        Self { links, len: 0 }
    }

    fn sentinel(&self) -> u32 {
        (self.links.len() - 1) as u32
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.links[index as usize].next != DETACHED
    }

    pub(crate) fn front(&self) -> Option<u32> {
        let front = self.links[self.sentinel() as usize].next;
        (front != self.sentinel()).then_some(front)
    }

    pub(crate) fn push_back(&mut self, index: u32) {
        let sentinel = self.sentinel();
        self.insert_between(self.links[sentinel as usize].prev, index, sentinel);
    }

    pub(crate) fn push_front(&mut self, index: u32) {
        let sentinel = self.sentinel();
        self.insert_between(sentinel, index, self.links[sentinel as usize].next);
    }

    fn insert_between(&mut self, prev: u32, index: u32, next: u32) {
        assert!(!self.contains(index), "invariant: {index} is listed once");
        self.links[index as usize] = Link { prev, next };
        self.links[prev as usize].next = index;
        self.links[next as usize].prev = index;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, index: u32) {
        assert!(self.contains(index), "invariant: {index} is listed");
        let Link { prev, next } = self.links[index as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[index as usize] = Link {
            prev: DETACHED,
            next: DETACHED,
        };
        self.len -= 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let front = self.front()?;
        self.remove(front);
        Some(front)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.sentinel();
        std::iter::from_fn(move || {
            at = self.links[at as usize].next;
            (at != self.sentinel()).then_some(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_removal_from_the_middle() {
        let mut list = IndexList::with_capacity(8);
        for index in [3, 1, 4] {
            list.push_back(index);
        }
        list.push_front(5);
        list.remove(1);
        assert_eq!(list.iter().collect::<Vec<_>>(), [5, 3, 4]);
        assert_eq!(
            (list.pop_front(), list.len(), list.contains(5)),
            (Some(5), 2, false)
        );
    }

    #[test]
    #[should_panic(expected = "3 is listed once")]
    fn an_index_cannot_be_listed_twice() {
        let mut list = IndexList::with_capacity(8);
        list.push_back(3);
        list.push_front(3);
    }
}
