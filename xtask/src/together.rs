//! Work on several things at once.

use std::{
    sync::{Mutex, PoisonError},
    thread::{self, available_parallelism},
};

use anyhow::Result;

/// What `work` makes of each item, in the order of the items; as many are worked on at once as there are CPUs. After an
/// error none is begun.
pub(crate) fn all<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let left = Mutex::new(items.iter().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work_some = || -> Result<Vec<(usize, R)>> {
        let mut done = Vec::new();
        while let Some((at, item)) = next() {
            match work(item) {
                Ok(result) => done.push((at, result)),
                Err(e) => {
                    while next().is_some() {}
                    return Err(e);
                }
            }
        }
        Ok(done)
    };
    let mut done = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..available_parallelism()?.get()).map(|_| scope.spawn(work_some)).collect();
        for thread in threads {
            done.extend(thread.join().expect("it does not panic")?);
        }
        Ok(())
    })?;
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(super::all(&items, |item| Ok(item * 2)).unwrap(), (0..200).step_by(2).collect::<Vec<_>>());
        assert_eq!(super::all(&[0_u32; 0], |item| Ok(*item)).unwrap(), [0; 0]);
    }

    #[test]
    fn an_error_is_the_whole_result() {
        let odd = |item: &u32| if item % 2 == 1 { bail!("{item}") } else { Ok(*item) };
        assert_eq!(super::all(&[0, 2, 3, 4], odd).unwrap_err().to_string(), "3");
    }
}
