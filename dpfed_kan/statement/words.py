"""What a review board has to be told in words: unit, relation, who sees what, what is covered."""

from __future__ import annotations

from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.federated.runtimes import Fused, InProcess, Ray, Workers
from dpfed_kan.privacy.mechanism import Mechanism, NeighboringRelation

_SIMULATED = (
    "A simulation: one operator holds the records of all sites, the keys and this directory. What "
    "is said about sites below is what would hold if each ran on a machine of its own"
)

_REAL = (
    "Real sites: each holds its records, its key and its ledger on its own disk, and answers the "
    "server through Flower. The server holds no record"
)

_RELATIONS: dict[NeighboringRelation, str] = {
    "zero_out": (
        "Two data sets are neighbors if they are the same except that what one {unit} contributes "
        "is set to zero in one of them. The number of {unit}s at each site is the same in both, "
        "and is published"
    ),
    "replace_one": (
        "Two data sets are neighbors if they are the same except that one {unit} is replaced by "
        "any other. The number of {unit}s at each site is the same in both, and is published"
    ),
    "add_remove": (
        "Two data sets are neighbors if one of them holds one {unit} more than the other, and is "
        "otherwise the same"
    ),
}

_NOT_COVERED = (
    {
        "access": "Figures on held-out records",
        "why": "loss, accuracy, calibration and the like are exact, without noise, for the "
        "records that were held out of training",
    },
    {
        "access": "Choice of settings (hyperparameter tuning)",
        "why": "trying settings on the same records and keeping the best is more than one run",
    },
    {
        "access": "Preprocessing",
        "why": "inputs are scaled by public ranges only, which costs nothing; that rows were "
        "refused or dropped as unusable is visible in the numbers of records",
    },
    {
        "access": "Who holds which records",
        "why": "the division into sites, and into training and held-out records, is fixed "
        "before training; the sizes are published as they are",
    },
    {
        "access": "Stopping",
        "why": "the number of rounds was fixed in advance; stopping earlier because of what "
        "was seen is covered by the ε of the whole plan only",
    },
)

LIMITS = (
    "The server is trusted: it sees each site's sum before noise is added. There is no secure "
    "aggregation.",
    "Gaussian noise is drawn in double precision. Attacks on the last bits of such numbers "
    "(Mironov 2012) are not excluded.",
    "The guarantee is about one unit. It does not hide what holds for many: a relation between "
    "inputs and label that the model has learned can be applied to anybody.",
    "Which sites take part, and how many units each has, is public.",
    "Wall times, memory and message sizes of the processes are not protected.",
    "Several runs on the same records cost more than each of them: their ε must be added up.",
)


def setting_in_words(runtime: object) -> str:
    """Return how the sites were run.

    Raises:
        TypeError: If there are no words for the runtime: a report never guesses who saw what.
    """
    if isinstance(runtime, Fused | InProcess | Ray | Workers):
        return _SIMULATED
    if isinstance(runtime, Deployed):
        return _REAL
    raise TypeError(f"the report has no words for the runtime {type(runtime).__name__}")


def unit_in_words(mechanism: Mechanism) -> str:
    """Return what one clipped gradient stands for."""
    if mechanism.privacy_unit == "record":
        return (
            "One record: one row that one site trains on. A person with several rows is not "
            "covered as a whole"
        )
    sites = mechanism.sites_per_unit
    where = "at one site" if sites == 1 else f"at up to {sites} sites"
    return f"One patient: all records that carry the same patient id, {where}"


def relation_in_words(mechanism: Mechanism) -> str:
    """Return what may differ between two data sets that must look alike."""
    return _RELATIONS[mechanism.neighboring_relation].format(unit=mechanism.privacy_unit)


def who_sees(unit: str, *, private: bool) -> list[dict[str, str]]:
    """Return every role with what it sees."""
    against_others = (
        "no: ε is promised against them, also if they put together what they know"
        if private
        else "no, and nothing is promised: no noise was added"
    )
    return [
        {
            "who": "Each site",
            "sees": f"its own {unit}s, and every model that is released",
            "trusted": "with its own records",
        },
        {
            "who": "The server",
            "sees": "each site's sum of clipped gradients, before noise, in every round; the "
            "number of units of each site; its own secret key of the noise",
            "trusted": "yes: nothing is promised against it",
        },
        {
            "who": "Other sites, users of the model, the public",
            "sees": "the released models of all rounds, and all settings",
            "trusted": against_others,
        },
        {
            "who": "Readers of this report",
            "sees": "the above, and figures measured on held-out records, which ε does not cover",
            "trusted": "with those figures",
        },
    ]


def accesses(unit: str, *, private: bool) -> dict[str, list[dict[str, str]]]:
    """Return each access to records, and whether ε covers it: nothing is without noise."""
    if not private:
        training = {
            "access": "Gradients on the training records",
            "why": "no noise was added to their sums, so that nothing that is made of them is "
            "private",
        }
        return {"covered": [], "not_covered": [training, *_NOT_COVERED]}
    covered = [
        {
            "access": "Gradients on the training records",
            "why": f"what one {unit} contributes to a round is clipped; noise is added to the sum",
        },
        {
            "access": "All that is made from the released sums",
            "why": "models of all rounds, state of the update rule, averages, projections: made "
            "from noisy sums alone, they cost nothing more",
        },
    ]
    return {"covered": covered, "not_covered": list(_NOT_COVERED)}


def releases(
    *, num_models: int, num_params: int, unit: str, seeded: bool, private: bool
) -> dict[str, list[str]]:
    """Return what leaves the trusted part, and what does not."""
    key = (
        "the key of the noise: it follows from the seed, which the configuration states, so that "
        "anybody who has it can take the noise off"
        if seeded
        else "the key of the noise: the file named key stays with its owner, and must never be sent"
    )
    made_from = "the noisy sum" if private else "the sum, without noise,"
    return {
        "released": [
            f"the model after each of {num_models} rounds: {num_params} numbers each, made from "
            f"{made_from} of the round and the model before it",
            f"every setting of the run, the names of the sites, the number of {unit}s at each, and "
            "the expected share of them in a round",
        ],
        "not_released": [
            "records, gradients of single records, and a site's sum before noise",
            "how many and which records joined a round",
            key,
        ],
    }
