//! Dates for chat templates that tell the model what day it is: `strftime_now` of Hugging Face.
//!
//! UTC, English names, and only the directives that templates use.

/// Formats a time, in seconds since 1970 UTC, as C's `strftime` does. Directives that aren't
/// known stay as they are.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    // 1970-01-01 was a Thursday.
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::with_capacity(format.len() + 16);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('H') => text += &format!("{hour:02}"),
            Some('M') => text += &format!("{minute:02}"),
            Some('S') => text += &format!("{second:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('F') => text += &format!("{year}-{month:02}-{day:02}"),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// A time, in seconds since 1970, as RFC 3339 writes it in UTC.
pub fn utc_text(seconds: u64) -> String {
    strftime("%FT%H:%M:%SZ", seconds)
}

/// Year, month and day of a count of days since 1970-01-01. Howard Hinnant, "chrono-compatible
/// low-level date algorithms", `civil_from_days`, for days that aren't negative.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts by GNU `date -u`.
    #[test]
    fn dates_equal_those_of_gnu_date() {
        let full = "%A %a %d %B %b %m %Y %y %H:%M:%S %F";
        for (seconds, expected) in [
            (0, "Thursday Thu 01 January Jan 01 1970 70 00:00:00 1970-01-01"),
            (951_868_799, "Tuesday Tue 29 February Feb 02 2000 00 23:59:59 2000-02-29"),
            (1_735_689_599, "Tuesday Tue 31 December Dec 12 2024 24 23:59:59 2024-12-31"),
            (4_107_542_400, "Monday Mon 01 March Mar 03 2100 00 00:00:00 2100-03-01"),
        ] {
            assert_eq!(strftime(full, seconds), expected);
        }
        assert_eq!(utc_text(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(strftime("100%% %q %", 0), "100% %q %");
    }
}
