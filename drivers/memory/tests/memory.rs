//! Pages through the interface that the dataplane sees.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, PermissionsExt as _},
    },
    path::Path,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use berth_memory::Memory as _;
use berth_pages::{Backing, HugePage, Pages, PagesError};

fn read(memory: &Pages, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    memory.read_at(at, &mut bytes);
    bytes
}

fn check(memory: &Pages) {
    let len = memory.size();
    assert_eq!(read(memory, 0, len), vec![0; len]);
    // Odd places and lengths, up to the last byte.
    for (at, size) in [(0, 1), (1, 63), (4095, 2), (77, 4096), (len - 1, 1), (0, len), (3, 0), (len, 0)] {
        let data: Vec<u8> = (0..size).map(|n| (n * 31 + at + 1) as u8).collect();
        memory.write_at(at, &data);
        assert_eq!(read(memory, at, size), data);
    }
    memory.write_at(100, &[7; 100]);
    memory.zero_at(120, 30);
    let expected: Vec<u8> = (100..200).map(|at| if (120..150).contains(&at) { 0 } else { 7 }).collect();
    assert_eq!(read(memory, 100, 100), expected);
}

#[test]
fn ordinary_memory() {
    check(&Pages::new(100_001, &Backing::Ordinary, None).unwrap());
    check(&Pages::new(3 << 20, &Backing::Ordinary, Some(0)).unwrap());
}

#[test]
fn huge_pages_or_what_to_reserve() {
    match Pages::new(3 << 20, &Backing::Huge(HugePage::Size2M), None) {
        Ok(memory) => check(&memory),
        Err(PagesError::NotReserved { need, .. }) => assert_eq!(need, 2),
        Err(PagesError::Unsupported(page)) => assert_eq!(page, HugePage::Size2M),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn shared_pages_are_a_file_of_the_user_alone_for_as_long_as_they_live() {
    let name = format!("berth-test-{}", std::process::id());
    let path = Path::new("/dev/shm").join(&name);
    fs::write(&path, "left behind").unwrap();
    let backing = Backing::Shared(name);
    let pages = Pages::new(100_001, &backing, None).unwrap();
    check(&pages);
    pages.write_at(4095, b"ab");
    assert_eq!(fs::read(&path).unwrap()[4095..4097], *b"ab");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = Pages::new(4096, &backing, None).unwrap_err();
    assert!(matches!(&error, PagesError::InUse(at) if *at == path), "{error}");
    drop(pages);
    assert!(!path.exists());
}

/// Maps a file of pages once more, shared, as another process would.
fn map_again(pages: &Pages, protection: libc::c_int) -> io::Result<NonNull<libc::c_void>> {
    let fd = pages.file().unwrap().as_raw_fd();
    // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), pages.size(), protection, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(NonNull::new(at).unwrap()) }
}

#[test]
fn others_can_read_readable_pages_and_not_write_them() {
    let pages = Pages::new(100_001, &Backing::Readable(None), None).unwrap();
    assert_eq!(pages.file().unwrap().metadata().unwrap().len(), 100_001);
    sealed(&pages, io::ErrorKind::PermissionDenied);

    // Pages without that seal are for others to write.
    let pages = Pages::new(4096, &Backing::Unnamed, None).unwrap();
    let seen = map_again(&pages, libc::PROT_READ | libc::PROT_WRITE).unwrap();
    // SAFETY: the whole mapping, to which nothing refers any more.
    assert_eq!(unsafe { libc::munmap(seen.as_ptr(), pages.size()) }, 0);
}

/// `cargo xtask lab dpdk-nic` has huge pages.
#[test]
fn readable_huge_pages_or_what_to_reserve() {
    match Pages::new(3 << 20, &Backing::Readable(Some(HugePage::Size2M)), None) {
        Ok(pages) => {
            assert_eq!(pages.file().unwrap().metadata().unwrap().len(), 4 << 20);
            // Such a file has no system call to be written by.
            sealed(&pages, io::ErrorKind::InvalidInput);
        }
        Err(PagesError::NotReserved { need, .. }) => assert_eq!(need, 2),
        Err(PagesError::Unsupported(page)) => assert_eq!(page, HugePage::Size2M),
        Err(error) => panic!("{error}"),
    }
    let missing = Pages::new(3 << 40, &Backing::Readable(Some(HugePage::Size2M)), None).unwrap_err();
    let expected = matches!(missing, PagesError::NotReserved { need: 1_572_864, .. } | PagesError::Unsupported(_));
    assert!(expected, "{missing}");
}

/// Pages that nobody else can write; `write(2)` fails like this.
fn sealed(pages: &Pages, written: io::ErrorKind) {
    check(pages);
    let fails = |result: io::Result<()>, kind| assert_eq!(result.unwrap_err().kind(), kind);
    let denied = |result| fails(result, io::ErrorKind::PermissionDenied);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    denied(map_again(pages, both).map(|_| ()));
    denied(map_again(pages, libc::PROT_WRITE).map(|_| ()));
    let file = pages.file().unwrap();
    fails(file.write_all_at(b"no", 0), written);
    denied(file.set_len(0));
    denied(file.set_len(1 << 30));
    // Another descriptor of the file is no way around the seals.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fails(fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"no", 0), written);

    let seen = map_again(pages, libc::PROT_READ).unwrap();
    pages.write_at(4095, b"ab");
    // SAFETY: the mapping is that long, and nobody writes these bytes meanwhile.
    let bytes = unsafe { slice::from_raw_parts(seen.as_ptr().cast::<u8>().add(4095), 2) };
    assert_eq!(bytes, b"ab");
    let whole = file.metadata().unwrap().len() as usize;
    // SAFETY: the protection of a mapping that is this test's alone; it stays as it was.
    denied(match unsafe { libc::mprotect(seen.as_ptr(), whole, both) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    });
    // SAFETY: the whole mapping, to which nothing refers any more.
    assert_eq!(unsafe { libc::munmap(seen.as_ptr(), whole) }, 0);
}

#[test]
fn what_cannot_be_had_is_said() {
    let ordinary = |len, numa| Pages::new(len, &Backing::Ordinary, numa).unwrap_err();
    assert!(matches!(ordinary(0, None), PagesError::Size(0)));
    assert!(matches!(ordinary(u64::MAX, None), PagesError::Size(u64::MAX)));
    assert!(matches!(ordinary(1 << 50, None), PagesError::Short { need, .. } if need == 1 << 50));
    let error = ordinary(4096, Some(4000));
    assert!(error.to_string().starts_with("there is no memory node 4000: the nodes are ["), "{error}");
}

#[test]
fn ranges_beyond_the_end_panic() {
    let memory = Pages::new(4096, &Backing::Ordinary, None).unwrap();
    for (at, len) in [(4096, 1), (1, 4096), (usize::MAX, 1), (usize::MAX - 1, 4)] {
        let panics = |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
        assert!(panics(&|| memory.read_at(at, &mut vec![0; len])), "{at} {len}");
        assert!(panics(&|| memory.write_at(at, &vec![0; len])), "{at} {len}");
        assert!(panics(&|| memory.zero_at(at, len)), "{at} {len}");
    }
}

/// Readers of bytes that two writers overwrite see a mix of what these wrote, and nothing else.
#[test]
fn concurrent_writers_and_readers() {
    let memory = Arc::new(Pages::new(64 << 10, &Backing::Ordinary, None).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writers = [1u8, 2].map(|value| {
        let (memory, stop) = (Arc::clone(&memory), Arc::clone(&stop));
        memory.write_at(8, &vec![value; 60_000]);
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                memory.write_at(8, &vec![value; 60_000]);
            }
        })
    });
    for _ in 0..200 {
        assert!(read(&memory, 8, 60_000).iter().all(|&byte| byte == 1 || byte == 2));
    }
    stop.store(true, Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!((read(&memory, 0, 8), read(&memory, 60_008, 8)), (vec![0; 8], vec![0; 8]));
}

#[test]
fn huge_pages_that_are_missing_are_named_with_the_command_that_reserves_them() {
    let page = HugePage::Size2M;
    let error = Pages::new(3 << 40, &Backing::Huge(page), None).unwrap_err();
    let PagesError::NotReserved { need, free, reserve, .. } = error else { panic!("{error}") };
    assert_eq!(need, 3 << 19);
    assert_eq!(
        error.to_string(),
        format!(
            "1572864 huge pages of 2 MiB are needed and {free} are free; reserve them with: \
             echo {reserve} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        )
    );
    assert!(reserve >= need);
}
