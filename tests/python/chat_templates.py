"""Templates written the way the families' own are, and conversations to render them with. Data of the chat tests."""

CHATML_DEFAULT_SYSTEM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are Tiny, a model for tests<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

CHATML_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou answer.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML_THINKING = """{%- set ns = namespace(open=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and reasoning)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message goes out of the list, so that the loop below does not see it. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools here") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

VICUNA = """{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set rest = messages[1:] %}{% else %}{{ 'A chat between a curious user and an assistant that answers politely. ' }}{% set rest = messages %}{% endif %}{% for message in rest %}{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL_V3 = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {
    "chatml_default_system": CHATML_DEFAULT_SYSTEM,
    "chatml_tools": CHATML_TOOLS,
    "chatml_thinking": CHATML_THINKING,
    "llama3": LLAMA3,
    "llama31": LLAMA31,
    "llama2": LLAMA2,
    "vicuna": VICUNA,
    "mistral": MISTRAL,
    "mistral_v3": MISTRAL_V3,
}

# Pieces of the language, one feature each; joined into one template, so that one rendering covers them all.
SNIPPETS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc",
    "a\n  {%+ if true +%}\n  b\n  {% endif %}\n\nc",
    "x {% if true %} y {% endif %} z\n  {{ 'q' }}\n  {# comment #}\n  r {#- c -#} s",
    "{{ '\\x41\\u00e9\\t\\'\\\\' }}{{ \"it's\" 'joined' }}{{ '{{ }}' }}{{ '%}' }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 * 3 + 4 }} {{ 2 + 3 * 4 }} {{ 10 - 2 - 3 }} {{ 1 ~ 2 ~ 'x' }} {{ 'a' + 2 ~ 3 }}",
    "{{ true }} {{ none }} {{ False }} {{ undefined_name }} {{ not none }} {{ 1 == 1.0 }} {{ 0 == false }} {{ 'a' < 'b' }}",
    "{{ 'yes' if messages else 'no' }}{{ 'x' if false }}{{ 'a' if false else 'b' if false else 'c' }}",
    "{{ (none or 'b') ~ (0 or '') ~ ('x' and 'y') }}{{ 'a' in 'abc' }}{{ 'z' not in ['a', 'z'] }}{{ 'role' in messages[0] }}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }},{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex0 }}{{ loop.first }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}empty{% endfor %}{% for k, v in {'a': 1, 'b': 'c'}.items() %}{{ k ~ '=' ~ v }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if not loop.last }}|{% endfor %}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, s='') %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% if true %}{% set y = 'kept' %}{% endif %}{{ y }}{% set z %}block {{ y }}\n{% endset %}[{{ z }}]",
    "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c is none }}{{ bos_token }}>{% endmacro %}{{ m('1') }}{{ m('1', c=2) }}{{ m(a='k', b='l') }}",
    "{% macro outer(t) %}{% for c in t %}{{ inner(c) }}{% endfor %}{% endmacro %}{% macro inner(c) %}({{ c }}){% endmacro %}{{ outer('añ日') }}",
    "{{ ' \u3000x\u00a0\u2003 '|trim }}|{{ '--a--'.strip('-') }}|{{ '  b '.lstrip() }}|{{ 'xxb'.rstrip('b') }}|{{ '\n\tc\n'|trim }}|",
    "{{ 'a,b,,c'.split(',')[-1] }}{{ 'a,b,,c'.split(',')|length }}{{ 'aXbX'.replace('X', 'yy') }}{{ 'aXb'|replace('X', '') }}",
    "{{ 'añ日本'|length }}{{ 'añ日本'[1] }}{{ 'añ日本'[-1] }}{{ 'añ日本'[1:3] }}{{ 'añ日本'[::-1] }}{{ [1, 2, 3][-2:]|join('+') }}{{ [1,2,3,4][3:0:-2]|join }}",
    "{{ ['a', 'b']|first }}{{ 'xyz'|last }}{{ [1, 2]|length }}{{ messages|count }}{{ missing|default('d') }}{{ ''|default('e', true) }}{{ ''|d('f') }}",
    "{{ 'Ab'|upper }}{{ 'aB cD'|capitalize }}{{ ''|capitalize }}{{ 'Ab'.lower() }}{{ 3 is odd }}{{ 3 is even }}{{ 'a' is string }}{{ [] is iterable }}{{ {} is mapping }}{{ 4 is number }}{{ none is none }}",
    "{{ x_undefined is defined }}{{ messages is not defined }}{{ true is true }}{{ 1 is false }}{{ 'a' is equalto 'a' }}{{ 'a' is in ['a'] }}{{ 3 is eq 3 }}",
    "{{ messages[0]['role'] }}{{ messages[0].role }}{{ messages[-1].get('role') }}{{ messages[0].get('none', 'def') }}{{ messages[99] is defined }}{{ messages[0].none is defined }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}{{ -3 }}{{ - 3 + 5 }}{{ (1, 2)[1] }}{{ (('deep')) }}{{ [[1], [2]][1][0] }}",
    "{{ 'abc'[1::9223372036854775807] }}{{ 'abc'[::-1000000000] }}{{ [1, 2, 3][1::9223372036854775807]|join }}{{ 'abc'[-1000000000:2] }}",
    "{% generation %}inside{% endgeneration %}\n{% if false %}a{% elif messages|length > 1 %}b{% elif true %}c{% else %}d{% endif %}",
    "{{ 'a' + 'b' | upper }}{{ ('a' + 'b') | upper }}{{ not true or true }}{{ 1 + 1 == 2 and 3 > 2 }}",
]  # fmt: skip

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}],
    "turns": [
        {"role": "user", "content": "  Hi\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello! How are you?  "},
        {"role": "user", "content": "Fine. ¿Y tú? 日本語 \u3000"},
        {"role": "assistant", "content": "\u00a0Good\u2003"},
        {"role": "user", "content": "</s> <|im_end|> {{ bos_token }} 'q' \"d\" \\n"},
    ],
    "system_turns": [
        {"role": "system", "content": " Rules:\n\n1. none \n"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ],
    "twice": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
}
