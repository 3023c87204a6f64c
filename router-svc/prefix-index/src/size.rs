//! Lengths that a published slice may have: 64 classes, each about an eighth longer than the one before.

/// Classes, as many as six bits name.
const CLASSES: usize = 64;

const SIZES: [u32; CLASSES] = {
    let mut sizes = [1; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        let before: u32 = sizes[class - 1];
        sizes[class] = before + if before < 8 { 1 } else { before / 8 };
        class += 1;
    }
    sizes
};

/// Elements of a class.
#[inline]
pub(crate) fn size_of_class(class: usize) -> usize {
    SIZES[class] as usize
}

/// The class of exactly so many elements.
pub(crate) fn class_of(elements: usize) -> Option<usize> {
    SIZES.binary_search(&u32::try_from(elements).ok()?).ok()
}

/// The shortest length that holds so many elements; none when none does.
pub(crate) fn fitting(elements: usize) -> Option<usize> {
    let class = SIZES.partition_point(|size| (*size as usize) < elements);
    SIZES.get(class).map(|size| *size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_a_class_at_most_an_eighth_longer() {
        let longest = size_of_class(CLASSES - 1);
        assert!(longest > 3_000, "{longest}");
        for elements in 1..=longest {
            let fits = fitting(elements).unwrap();
            assert!(fits >= elements && fits <= elements + elements / 7 + 1, "{elements} in {fits}");
            assert_eq!(class_of(fits).map(size_of_class), Some(fits));
        }
        assert_eq!(fitting(longest + 1), None);
    }
}
