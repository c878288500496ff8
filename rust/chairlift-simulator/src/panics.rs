//! Panics of the code under test are findings: kept for the report instead of printed a thousand times while shrinking.

use std::{
    cell::{Cell, RefCell},
    panic,
    sync::Once,
};

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Ends the silence when dropped.
pub(crate) struct Quiet(());

impl Drop for Quiet {
    fn drop(&mut self) {
        IS_QUIET.set(false);
    }
}

/// Keeps the panics of this thread until the guard is dropped; other threads panic as ever.
pub(crate) fn quiet() -> Quiet {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_QUIET.get() {
                LAST.set(info.to_string().replace('\n', " "));
            } else {
                loud(info);
            }
        }));
    });
    IS_QUIET.set(true);
    Quiet(())
}

/// The last panic of this thread.
pub(crate) fn last() -> String {
    LAST.take()
}
