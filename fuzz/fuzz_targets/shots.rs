#![no_main]
//! Shots: no file panics or is read for ever, and what is read is written as it was, but for the ends of lines.

use berth_qec::shots::{Bits, Format, Found, Reader, Writer};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [width, file @ ..] = data else { return };
    let width = usize::from(*width) * 3;
    for (_, format) in Format::ALL {
        let (mut reader, mut rest) = (Reader::new(format, Bits::Detectors, width), file);
        let mut writer = Writer::new(format, Bits::Detectors, width);
        let (mut row, mut shots) = (vec![0; width.div_ceil(8)], 0);
        while let Ok(Found::Shot) = reader.next(&mut rest, true, &mut row) {
            shots += 1;
            assert!(shots <= file.len() * 64);
            writer.push(&row).expect("what is read has its padding");
        }
        let Ok(written) = writer.finish() else { continue };
        let (mut again, mut rest) = (Reader::new(format, Bits::Detectors, width), &written[..]);
        let mut read = 0;
        while again.next(&mut rest, true, &mut row).expect("what is written is read") == Found::Shot {
            read += 1;
        }
        assert_eq!(read, shots);
    }
});
