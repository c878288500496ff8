"""A program of a user of lm-eval: the scores of texts by completions with `echo`."""

import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, folder = sys.argv[1:]
model = LocalCompletionsAPI(
    base_url=f"{url}/completions",
    model="demo",
    tokenizer_backend="huggingface",
    tokenizer=folder,
    max_length=2048,
    tokenized_requests=True,
)


def request(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


likely = ("Why is the sky blue? The sky is", " blue")
unlikely = ("Why is the sky blue? The sky is", " \N{GRINNING FACE} seven")
(good, _), (bad, is_greedy) = model.loglikelihood(
    [request("loglikelihood", *likely), request("loglikelihood", *unlikely)]
)
assert -20 < good < 0, good
assert bad < good - 5, (bad, good)
assert not is_greedy
(text,) = model.generate_until(
    [request("generate_until", "Once upon a time", {"until": ["."], "max_gen_toks": 20})]
)
assert text.strip(), text
assert "." not in text
print("lm-eval: as expected")
