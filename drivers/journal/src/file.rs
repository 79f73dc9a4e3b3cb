//! The journal's file: opening, reading, truncating and extending it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Seek},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_fabric::journal::{
    End, FRAME_HEADER_LEN, HEADER_LEN, MAX_FRAME_LEN, Record, Replay, ReplayError, frame_header, frame_len, header,
};

use crate::{Failure, OpenError, compact::write_failed};

const JOURNAL: &str = "journal";
const NEW: &str = "journal.new";
const LOCK: &str = "journal.lock";

/// Bytes by which the file grows.
const CHUNK: u64 = 8 << 20;

/// Bytes of the file beyond those in use, unless the disk is full. Operations that end leases can still use them then.
const HEADROOM: u64 = 2 << 20;

/// The remains of a commit that a crash cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    /// Offset in the file at which it began.
    pub at: u64,
    /// Number of its bytes, up to the last one that is not zero.
    pub lost: u64,
}

/// An open journal file, to be appended to.
#[derive(Debug)]
pub(crate) struct JournalFile {
    dir: Directory,
    file: File,
    id: u64,
    sequence: u64,
    /// Length of the sound part.
    end: u64,
    /// Length of the file. Behind the end it has zeros.
    allocated: u64,
    /// Whether the disk has no room for the headroom.
    full: bool,
}

/// The sound part of a journal.
#[derive(Debug)]
pub(crate) struct Sound {
    file: File,
    len: u64,
}

/// Commits behind the sound part.
#[derive(Debug)]
pub(crate) struct Tail {
    file: File,
    id: u64,
    sequence: u64,
    at: u64,
}

/// The journal's directory, locked.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The directory itself, to be synced.
    file: File,
    lock: Arc<Lock>,
}

/// A locked file.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a child that was forked meanwhile has it open, and with it the lock, until it
        // executes a program.
        let _ = self.0.unlock();
    }
}

/// Creates a directory, and makes that durable.
fn create(path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for parent in missing.iter().filter_map(|dir| dir.parent()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Adds the failed step and the path to an error.
fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { what, path: path.to_owned(), source }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Opens or begins the journal in `dir`; passes all its records to `record`.
pub(crate) fn open(dir: &Path, record: impl FnMut(Record)) -> Result<(JournalFile, Option<Torn>), OpenError> {
    let dir = Directory::lock(dir)?;
    let new = dir.path.join(NEW);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("cannot remove", &new)(error)),
        _ => {}
    }
    let path = dir.path.join(JOURNAL);
    match options().open(&path) {
        Ok(file) => {
            let (mut journal, torn) = replay(dir, file, record)?;
            journal.reserve(0).map_err(failed("cannot write zeros ahead to", &path))?;
            Ok((journal, torn))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut journal = JournalFile::begin(dir).map_err(failed("cannot begin", &path))?;
            journal.take_over().map_err(failed("cannot begin", &path))?;
            Ok((journal, None))
        }
        Err(error) => Err(failed("cannot open", &path)(error)),
    }
}

/// Reads the journal `file`, and cuts off a torn tail.
fn replay(
    dir: Directory,
    file: File,
    mut record: impl FnMut(Record),
) -> Result<(JournalFile, Option<Torn>), OpenError> {
    let path = dir.path.join(JOURNAL);
    let unread = |error| match error {
        ReplayError::Corrupt(corrupt) => OpenError::Corrupt { path: path.clone(), corrupt },
        ReplayError::Read(error) => failed("cannot read", &path)(error),
    };
    let mut replay = Replay::new(&file).map_err(unread)?;
    for found in &mut replay {
        record(found.map_err(unread)?);
    }
    let mut allocated = file.metadata().map_err(failed("cannot read", &path))?.len();
    let (id, sequence) = (replay.id(), replay.next_sequence());
    let end = match replay.end() {
        Some(End::Torn { at, .. }) => at,
        _ => allocated,
    };
    let lost = used(&file, end).map_err(failed("cannot read", &path))?;
    let torn = (lost > 0).then_some(Torn { at: end, lost });
    if torn.is_some() {
        file.set_len(end).and_then(|()| file.sync_all()).map_err(failed("cannot cut the torn tail of", &path))?;
        allocated = end;
    }
    Ok((JournalFile { dir, file, id, sequence, end, allocated, full: false }, torn))
}

/// The bytes of `file` from `at` up to the last one that is not zero.
fn used(file: &File, at: u64) -> io::Result<u64> {
    let mut piece = vec![0; 1 << 20];
    let (mut passed, mut used) = (0, 0);
    loop {
        let len = file.read_at(&mut piece, at + passed)?;
        if len == 0 {
            return Ok(used);
        }
        if let Some(last) = piece[..len].iter().rposition(|&byte| byte != 0) {
            used = passed + last as u64 + 1;
        }
        passed += len as u64;
    }
}

impl Directory {
    fn lock(path: &Path) -> Result<Self, OpenError> {
        create(path).map_err(failed("cannot create", path))?;
        let lock_path = path.join(LOCK);
        let lock =
            options().create(true).truncate(false).open(&lock_path).map_err(failed("cannot open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed("cannot lock", &lock_path)(error)),
        }
        let file = File::open(path).map_err(failed("cannot open", path))?;
        Ok(Self { path: path.to_owned(), file, lock: Arc::new(Lock(lock)) })
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), file: self.file.try_clone()?, lock: Arc::clone(&self.lock) })
    }
}

impl Sound {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads it from its start. Only one reader at a time, because they share the file's position, which nothing else
    /// uses.
    pub(crate) fn reader(&self) -> io::Result<impl Read> {
        let mut file = &self.file;
        file.rewind()?;
        Ok(file.take(self.len))
    }
}

impl Tail {
    /// Offset up to which it was copied.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Appends the next frame to `new`. The frame must be durable here.
    pub(crate) fn copy_frame(&mut self, new: &mut JournalFile) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new("reading back", &error);
        let mut head = [0; FRAME_HEADER_LEN];
        self.file.read_exact_at(&mut head, self.at).map_err(failed)?;
        let len = frame_len(&head).min(MAX_FRAME_LEN);
        let mut frame = vec![0; FRAME_HEADER_LEN + len];
        self.file.read_exact_at(&mut frame, self.at).map_err(failed)?;
        if frame_header(self.id, self.sequence, &frame[FRAME_HEADER_LEN..]) != frame[..FRAME_HEADER_LEN] {
            return Err(Failure { what: "reading back", errno: libc::EBADMSG });
        }
        self.at += frame.len() as u64;
        self.sequence += 1;
        new.append(&mut frame).map_err(|error| write_failed(&error))
    }
}

impl JournalFile {
    /// Begins an empty journal next to the one in `dir`, with a new id. The id only tells its frames from those of
    /// other files, so it may be guessable.
    pub(crate) fn begin(dir: Directory) -> io::Result<Self> {
        let file = options().create(true).truncate(true).open(dir.path.join(NEW))?;
        let id = RandomState::new().hash_one(0);
        file.write_all_at(&header(id), 0)?;
        let end = HEADER_LEN as u64;
        let mut journal = Self { dir, file, id, sequence: 1, end, allocated: end, full: false };
        journal.reserve(0)?;
        Ok(journal)
    }

    /// Its directory, for a journal that is to replace it.
    pub(crate) fn directory(&self) -> io::Result<Directory> {
        self.dir.try_clone()
    }

    /// Makes this journal, begun next to another, the journal of the directory.
    pub(crate) fn take_over(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(self.dir.path.join(NEW), self.dir.path.join(JOURNAL))?;
        self.dir.file.sync_all()
    }

    /// Removes the remains of a successor that did not take over.
    pub(crate) fn remove_successor(&self) {
        // If that fails, the next start does it, or the next successor.
        let _ = fs::remove_file(self.dir.path.join(NEW));
    }

    /// The present sound part, which can be read while more is appended, and what will come behind it.
    pub(crate) fn sound(&self) -> io::Result<(Sound, Tail)> {
        let file = self.file.try_clone()?;
        let tail = Tail { file: self.file.try_clone()?, id: self.id, sequence: self.sequence, at: self.end };
        Ok((Sound { file, len: self.end }, tail))
    }

    /// Length of the sound part.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Whether the disk is full: there was room for the last request, and less than the headroom behind it.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Makes sure that there is room for `len` bytes at the end, with the headroom behind them if the disk has room for
    /// it.
    pub(crate) fn reserve(&mut self, len: u64) -> io::Result<()> {
        let need = self.end + len.max(1);
        let extended = self.extend(need + HEADROOM);
        self.full = need <= self.allocated && extended.as_ref().is_err_and(is_for_want_of_room);
        if self.full { Ok(()) } else { extended }
    }

    /// Extends the file to at least `len` bytes, with written zeros.
    fn extend(&mut self, len: u64) -> io::Result<()> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        if len <= self.allocated {
            return Ok(());
        }
        let until = len.next_multiple_of(CHUNK);
        // The space first, so that a full disk is known before anything is written. Some file systems cannot.
        // SAFETY: no pointers.
        let reserved = unsafe {
            libc::fallocate(
                self.fd(),
                libc::FALLOC_FL_KEEP_SIZE,
                self.allocated as libc::off_t,
                (until - self.allocated) as libc::off_t,
            )
        };
        if reserved != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                return Err(error);
            }
        }
        while self.allocated < until {
            let len = (until - self.allocated).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..len as usize], self.allocated)?;
            self.allocated += len;
        }
        Ok(())
    }

    /// Fills in the header of `frame`, whose records stand behind room for one, and makes room for it in the file.
    /// Returns the offset at which to write it.
    pub(crate) fn place(&mut self, frame: &mut [u8]) -> io::Result<u64> {
        debug_assert!(frame.len() <= FRAME_HEADER_LEN + MAX_FRAME_LEN);
        self.reserve(frame.len() as u64)?;
        let (head, records) = frame.split_at_mut(FRAME_HEADER_LEN);
        head.copy_from_slice(&frame_header(self.id, self.sequence, records));
        Ok(self.end)
    }

    /// Writes the frame that was placed last at its offset.
    pub(crate) fn write(&self, frame: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(frame, at)
    }

    /// Moves the end behind the frame that was placed last and is now written.
    pub(crate) fn advance(&mut self, len: usize) {
        self.end += len as u64;
        self.sequence += 1;
    }

    /// Appends a frame without making it durable.
    pub(crate) fn append(&mut self, frame: &mut [u8]) -> io::Result<()> {
        let at = self.place(frame)?;
        self.write(frame, at)?;
        self.advance(frame.len());
        Ok(())
    }

    /// Makes everything appended durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
