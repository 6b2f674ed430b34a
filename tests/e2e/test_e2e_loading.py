"""Models as files: GGUF beside safetensors, end tokens and BOS from metadata, rope scaling."""

import subprocess
import sys

import pytest

from baton.engine.errors import UnsupportedModel
from baton.engine.weights import load_model
from tests.support import checkpoints
from tests.support.asking import ask
from tests.support.gguf_files import to_gguf
from tests.support.processes import ROOT, Shape, running
from tests.support.reference import reference

HI = [{"role": "user", "content": "hi"}]
FOX = "The quick brown fox"
PROMPTS = [FOX, "x" * 15, "0", "Hello, world!", "over several blocks of sixteen " * 3]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def serve(tmp_path):
    """Serves a model on a cluster of its own: idle and serving at the end."""

    def start(model, **worker):
        (tmp_path / "cluster").mkdir()
        settings = {"kv_blocks": 64, "block_size": 16} | worker
        return running(Shape(model, forked=True, worker=tuple(settings.items())), tmp_path / "cluster")

    return start


@pytest.mark.parametrize(("bos", "hi_tokens", "chat_tokens"), [(True, 3, 8), (False, 2, 8), (None, 2, 7)])
async def test_c631_a_gguf_files_tokenizer(scripted, tmp_path, serve, bos, hi_tokens, chat_tokens):
    with serve(to_gguf(scripted, tmp_path / "scripted.gguf", bos=bos)) as cluster:
        assert (await ask(cluster, prompt="hi", max_tokens=5)).prompt_tokens == hi_tokens
        chat = await ask(cluster, messages=HI, max_tokens=10)
        assert (chat.text, chat.finish, chat.prompt_tokens) == ("OK.", "stop", chat_tokens)
        for end in "$%":
            answer = await ask(cluster, prompt=end, max_tokens=5)
            assert (answer.text, answer.finish, answer.completion_tokens) == ("", "stop", 1)
        cluster.assert_idle()
        cluster.assert_serving()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
async def test_c802_a_gguf_file_says_what_its_directory_says(tmp_path, serve, kind):
    directory = checkpoints.random_model(tmp_path / kind, kind)
    with serve(to_gguf(directory, tmp_path / f"{kind}.gguf")) as cluster:
        answers = [await ask(cluster, prompt=prompt, max_tokens=24, logprobs=0) for prompt in PROMPTS]
        cluster.assert_idle()
        cluster.assert_serving()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        reference(directory).assert_equal(answer, prompt, 24)
    if kind == "llama":
        assert answers[0].text == "k/b!Y5RPL)x>&8*fYdLf)doJ"


@pytest.mark.parametrize("key", ["rope_type", "type"])
async def test_c265_scaled_rope_at_every_length(tmp_path, serve, key):
    scaling = {key: "linear", "factor": 8.0}
    directory = checkpoints.random_llama(tmp_path / "scaled", rope_scaling=scaling)
    with serve(directory, kv_blocks=192) as cluster:
        for length in (20, 300, 2000):
            prompt = ("The quick brown fox jumps over the lazy dog. " * 50)[:length]
            answer = await ask(cluster, prompt=prompt, max_tokens=24, logprobs=0)
            reference(directory).assert_equal(answer, prompt, 24)
        cluster.assert_idle()


@pytest.mark.parametrize("scaling", [{"rope_type": "llama3", **LLAMA3}, {"type": "llama3", **LLAMA3}, {"rope_type": "banana"}])
def test_c265_an_unknown_rope_is_refused_by_name(tmp_path, scaling):
    directory = checkpoints.random_llama(tmp_path / "scaled", rope_scaling=scaling)
    with pytest.raises(UnsupportedModel, match=f"rope type '{scaling.get('rope_type', 'llama3')}' is not served"):
        load_model(directory)


def test_c265_the_refusal_is_what_a_user_reads(tmp_path):
    directory = checkpoints.random_llama(tmp_path / "scaled", rope_scaling={"rope_type": "llama3", **LLAMA3})
    command = [sys.executable, "-m", "baton.cli.main", "serve", str(directory), "--port", "0", "--grpc-port", "0"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "rope type 'llama3' is not served" in ran.stderr
    assert "Traceback" not in ran.stderr
