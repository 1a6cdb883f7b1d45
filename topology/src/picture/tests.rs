//! Pictures are well-formed, and everything that has a place is in them once.

use super::*;
use crate::machine::Drive;
use crate::plan::PlanRequest;
use crate::policy::{self, PolicyName};
use crate::synthetic;
use roxmltree::Document;

const MACHINES: [&str; 5] = [
    "pack:1 core:1 pu:1",
    "pack:2 [numa(memory=64GiB)] l3:2 core:4 pu:2",
    "pack:2 numa:2 core:3 pu:1",
    "pack:2 [numa(memory=64GiB)] [numa(memory=256GiB)] core:2 pu:2",
    "numa:4 core:16 pu:2",
];

/// A machine as if it were this one, so that plans pin.
fn here(text: &str) -> Machine {
    let machine = synthetic::probe(text).expect("a machine");
    Machine { origin: crate::machine::Origin::Live, ..machine }
}

fn marked<'a>(document: &'a Document, mark: &'a str) -> Vec<&'a str> {
    document.descendants().filter_map(|element| element.attribute(mark)).collect()
}

#[test]
fn every_cpu_and_every_seat_is_drawn_once() {
    for (text, name) in MACHINES.iter().flat_map(|text| policy::names().map(move |n| (text, n))) {
        for machine in [here(text), synthetic::probe(text).expect("a machine")] {
            let policy = PolicyName::find(name).expect("a known policy");
            let plan = policy::plan(&machine, policy, &PlanRequest::default()).expect("a plan");
            let svg = picture(&machine, Some(&plan));
            let document = Document::parse(&svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
            let mut drawn: Vec<u32> = marked(&document, "data-cpu")
                .iter()
                .map(|cpu| cpu.parse().expect("a number"))
                .collect();
            drawn.sort_unstable();
            let mut cpus: Vec<u32> =
                machine.cores.iter().flat_map(|core| core.cpus.iter().map(|cpu| cpu.0)).collect();
            cpus.sort_unstable();
            assert_eq!(drawn, cpus, "{text} {name}");
            let own = |host: &&SeatHost| matches!(host, SeatHost::OwnThread(_));
            let seats = plan.threads + [plan.residency, plan.io].iter().filter(own).count();
            let drawn = marked(&document, "data-seat");
            assert_eq!(drawn.len(), seats, "{text} {name}\n{svg}");
            assert_eq!(drawn.iter().filter(|&&role| role == "leader").count(), 1, "{text} {name}");
            let memories: std::collections::BTreeSet<_> =
                plan.nodes.iter().map(|node| node.memory).collect();
            assert_eq!(marked(&document, "data-arenas").len(), memories.len(), "{text} {name}");
        }
    }
}

#[test]
fn nothing_leaves_the_picture() {
    let machine = here(MACHINES[1]);
    let svg = picture(&machine, None);
    let document = Document::parse(&svg).expect("well-formed");
    let number = |element: &roxmltree::Node, name| -> Option<f64> {
        element.attribute(name).and_then(|value| value.parse().ok())
    };
    let size: Vec<f64> = document
        .root_element()
        .attribute("viewBox")
        .expect("a size")
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let mut seen = 0;
    for element in document.descendants().filter(|element| element.has_tag_name("rect")) {
        let (Some(width), Some(height)) = (number(&element, "width"), number(&element, "height"))
        else {
            continue;
        };
        let (mut right, mut bottom) = (width, height);
        for group in element.ancestors().filter_map(|group| group.attribute("transform")) {
            let inside = group.trim_start_matches("translate(").trim_end_matches(')');
            let (x, y) = inside.split_once(' ').expect("two numbers");
            right += x.parse::<f64>().expect("a number");
            bottom += y.parse::<f64>().expect("a number");
        }
        assert!(right <= size[2] && bottom <= size[3], "{right} {bottom} of {size:?}");
        seen += 1;
    }
    assert!(seen > 16, "{seen}");
}

#[test]
fn names_that_are_not_ours_stay_text() {
    let mut machine = here(MACHINES[0]);
    let drive = |name: &str, node| Drive {
        name: name.to_owned(),
        node,
        rotational: None,
        size_bytes: Some(1 << 40),
    };
    machine.drives = vec![drive("</text><a&b\"\u{1}", Some(NodeId(0))), drive("sda", None)];
    let svg = picture(&machine, None);
    let document = Document::parse(&svg).expect("well-formed");
    assert_eq!(marked(&document, "data-drive").len(), 2, "{svg}");
    let texts: Vec<&str> = document.descendants().filter_map(|element| element.text()).collect();
    assert!(texts.iter().any(|text| text.contains("</text><a&b\"?")), "{texts:?}");
}
