//! Sets of members, kept once each and never changed: what a block with several holders names.
//!
//! Readers find a set by its number, without a lock, in tables that grow by chunks and never move. A set that no block names any more is
//! freed when nobody can have read its number; only then the number is used again.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;

use crate::budget::Budget;
use crate::epochs::{Epochs, Pin};
use crate::holders::{Holders, Member};
use crate::mix::scramble;
use crate::published::Published;
use crate::size::fitting;

const WORDS: usize = 16;
/// Words before the first member: the set's hash, and how many members follow.
const HEADER: usize = 3;
/// Sets in the first chunk; each next one is twice as long.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 15;
/// Bytes per number in a chunk: its place for readers, and the writer's count, hash table entry and list entries, with room.
const NUMBER_BYTES: usize = 128;
/// Latest transitions remembered, a power of two.
const TRANSITIONS: usize = 64;

/// A cache line of a set.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line([u32; WORDS]);

/// A set as readers see it.
#[derive(Clone, Copy)]
pub(crate) struct Members<'p>(&'p [Line]);

impl<'p> Members<'p> {
    fn word(self, at: usize) -> u32 {
        self.0[at / WORDS].0[at % WORDS]
    }

    /// The same for equal sets of one index, whatever shard they are in; others differ but for chance (one in 2^63).
    pub(crate) fn hash(self) -> u64 {
        u64::from(self.word(0)) | u64::from(self.word(1)) << 32
    }

    pub(crate) fn len(self) -> usize {
        self.0.first().map_or(0, |line| line.0[2] as usize)
    }

    /// Its members, by slot.
    pub(crate) fn iter(self) -> impl Iterator<Item = Member> + 'p {
        self.0.iter().flat_map(|line| line.0).skip(HEADER).take(self.len()).map(Member)
    }
}

/// The sets of a shard, for readers.
pub(crate) struct Sets {
    chunks: [OnceLock<Box<[Published<Line>]>>; CHUNKS],
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    fn place(&self, set: u32) -> Option<&Published<Line>> {
        let (chunk, at) = chunk_of(set as usize);
        self.chunks[chunk].get().map(|chunk| &chunk[at])
    }

    /// A set that a block names, or named since the pin was made.
    pub(crate) fn read<'p>(&'p self, set: u32, pin: &'p Pin<'_>) -> Members<'p> {
        Members(self.place(set).map_or(&[], |place| place.read(pin)))
    }
}

fn chunk_of(set: usize) -> (usize, usize) {
    let chunk = (set / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, set + FIRST_CHUNK - (FIRST_CHUNK << chunk))
}

/// The members have no room in the byte budget, or no number is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

#[derive(Clone, Copy)]
struct Transition {
    from: Holders,
    change: Change,
    to: Holders,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Add(Member),
    Take(Member),
}

/// Makes and ends the sets of a shard. One writer at a time.
pub(crate) struct Interner {
    key: u64,
    numbers: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>,
    /// Blocks that name a set, by its number.
    uses: Vec<u32>,
    free: Vec<u32>,
    /// Sets that nobody names, and since when.
    ended: VecDeque<(u64, u32)>,
    transitions: Box<[Option<Transition>; TRANSITIONS]>,
    scratch: Vec<Member>,
}

impl Interner {
    /// `key` is the same in all shards of an index.
    pub(crate) fn new(key: u64) -> Self {
        Self {
            key,
            numbers: HashMap::default(),
            uses: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            transitions: Box::new([None; TRANSITIONS]),
            scratch: Vec::new(),
        }
    }

    /// `holders` with one more tier of a worker. The answer is counted only by [`Self::name`].
    pub(crate) fn with(
        &mut self,
        holders: Holders,
        member: Member,
        sets: &Sets,
        pin: &Pin<'_>,
        budget: &Budget,
    ) -> Result<Holders, NoRoom> {
        match holders.as_one() {
            _ if holders == Holders::NOBODY => return Ok(Holders::one(member)),
            Some(one) if one.slot() == member.slot() => return Ok(Holders::one(Member(one.0 | member.0))),
            _ => {}
        }
        self.changed(holders, Change::Add(member), sets, pin, budget)
    }

    /// `holders` without one tier of a worker, or without the tiers named by `member`.
    pub(crate) fn without(
        &mut self,
        holders: Holders,
        member: Member,
        sets: &Sets,
        pin: &Pin<'_>,
        budget: &Budget,
    ) -> Result<Holders, NoRoom> {
        if let Some(one) = holders.as_one() {
            if one.slot() != member.slot() {
                return Ok(holders);
            }
            let rest = one.tiers() & !member.tiers();
            return Ok(if rest == 0 { Holders::NOBODY } else { Holders::one(Member::new(one.slot(), rest)) });
        }
        self.changed(holders, Change::Take(member), sets, pin, budget)
    }

    fn changed(
        &mut self,
        from: Holders,
        change: Change,
        sets: &Sets,
        pin: &Pin<'_>,
        budget: &Budget,
    ) -> Result<Holders, NoRoom> {
        let (Change::Add(member) | Change::Take(member)) = change;
        let remembered = (from.0 ^ member.0.wrapping_mul(0x9e37_79b1)) as usize % TRANSITIONS;
        match self.transitions[remembered] {
            Some(known) if known.from == from && known.change == change => return Ok(known.to),
            _ => {}
        }
        let mut list = std::mem::take(&mut self.scratch);
        list.clear();
        match (from.as_one(), from.as_set()) {
            (Some(one), _) => list.push(one),
            (None, Some(set)) => list.extend(sets.read(set, pin).iter()),
            (None, None) => {}
        }
        let at = list.binary_search_by_key(&member.slot(), |held| held.slot());
        match (change, at) {
            (Change::Add(member), Ok(at)) => list[at].0 |= member.0,
            (Change::Add(member), Err(at)) => list.insert(at, member),
            (Change::Take(member), Ok(at)) => {
                list[at].0 &= !member.tiers();
                if list[at].tiers() == 0 {
                    list.remove(at);
                }
            }
            (Change::Take(_), Err(_)) => {}
        }
        let to = self.interned(&list, sets, pin, budget);
        self.scratch = list;
        if let Ok(to) = to {
            self.transitions[remembered] = Some(Transition { from, change, to });
        }
        to
    }

    /// The holders for these members, by slot.
    pub(crate) fn interned(
        &mut self,
        members: &[Member],
        sets: &Sets,
        pin: &Pin<'_>,
        budget: &Budget,
    ) -> Result<Holders, NoRoom> {
        match members {
            [] => return Ok(Holders::NOBODY),
            [one] => return Ok(Holders::one(*one)),
            _ => {}
        }
        // A sum, so that the order of arrival does not matter; the uppermost bit is kept for those that are no sets.
        let sum = members
            .iter()
            .fold(0u64, |sum, member| sum.wrapping_add(scramble(u64::from(member.0), self.key)));
        let hash = (sum & (u64::MAX >> 1)).max(1);
        if let Some(number) = self.numbers.get(&hash) {
            let known = sets.read(*number, pin);
            let same = known.len() == members.len() && known.iter().eq(members.iter().copied());
            return if same { Ok(Holders::set(*number)) } else { Err(NoRoom) };
        }
        let lines = fitting((HEADER + members.len()).div_ceil(WORDS)).ok_or(NoRoom)?;
        if !budget.reserve(lines * size_of::<Line>()) {
            return Err(NoRoom);
        }
        let Some(number) = self.number(sets, budget) else {
            budget.release(lines * size_of::<Line>());
            return Err(NoRoom);
        };
        let mut slice = vec![Line::default(); lines].into_boxed_slice();
        let header = [hash as u32, (hash >> 32) as u32, members.len() as u32];
        for (at, word) in header.into_iter().chain(members.iter().map(|member| member.0)).enumerate() {
            slice[at / WORDS].0[at % WORDS] = word;
        }
        let place = sets.place(number).expect("a number has its place");
        place.fill(slice);
        self.uses[number as usize] = 0;
        self.numbers.insert(hash, number);
        Ok(Holders::set(number))
    }

    /// One more block names these holders.
    pub(crate) fn name(&mut self, holders: Holders) {
        if let Some(set) = holders.as_set() {
            self.uses[set as usize] += 1;
        }
    }

    /// One block fewer names these holders. Its word has been written over.
    pub(crate) fn unname(&mut self, holders: Holders, sets: &Sets, pin: &Pin<'_>, epochs: &Epochs) {
        let Some(set) = holders.as_set() else { return };
        let uses = &mut self.uses[set as usize];
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        let hash = sets.read(set, pin).hash();
        if let Entry::Occupied(entry) = self.numbers.entry(hash)
            && *entry.get() == set
        {
            entry.remove();
        }
        for remembered in self.transitions.iter_mut() {
            if remembered.is_some_and(|known| known.from == holders || known.to == holders) {
                *remembered = None;
            }
        }
        self.ended.push_back((epochs.mark(), set));
    }

    /// Frees sets that nobody can see any more.
    pub(crate) fn collect(&mut self, sets: &Sets, pin: &Pin<'_>, epochs: &Epochs, budget: &Budget) {
        while let Some((mark, set)) = self.ended.front().copied() {
            let Some(place) = sets.place(set) else { return };
            let bytes = size_of_val(place.read(pin));
            if !place.reclaim(mark, epochs) {
                return;
            }
            budget.release(bytes);
            self.ended.pop_front();
            self.free.push(set);
        }
    }

    /// Sets that wait to be freed.
    pub(crate) fn ended(&self) -> usize {
        self.ended.len()
    }

    fn number(&mut self, sets: &Sets, budget: &Budget) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.uses.len();
        let (chunk, at) = chunk_of(number);
        if at == 0 {
            let numbers = FIRST_CHUNK << chunk;
            if number + numbers > Holders::MAX_SETS || !budget.reserve(numbers * NUMBER_BYTES) {
                return None;
            }
            self.numbers.reserve(number + numbers - self.numbers.len());
            self.uses.reserve_exact(numbers);
            self.free.reserve_exact(number + numbers);
            self.ended.reserve_exact(number + numbers - self.ended.len());
            let places = (0..numbers).map(|_| Published::empty()).collect();
            assert!(sets.chunks.get(chunk)?.set(places).is_ok(), "chunks are made once, in order");
        }
        self.uses.push(0);
        Some(number as u32)
    }
}

/// For keys that are hashes.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        // The table looks at the upper bits, of which one is always zero.
        self.0 = hash << 1;
    }
}
